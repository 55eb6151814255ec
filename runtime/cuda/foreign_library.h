// SPDX-License-Identifier: Apache-2.0
// A library of the vendor's that is opened when it is first needed, so that a missing one is a sentence and a test can
// put one of its own there.
//
// A program may bring one of its own, as LibTorch does. Where that is the same file it is shared. Another one beside it
// stays apart (runtime/base/symbol_clash.h): such libraries call their own public functions through the dynamic linker.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "lockstep/base/environment.h"

namespace lockstep::cuda {

// Literals.
struct ForeignNames {
  const char* who;       // that asks, at the beginning of errors: "nccl"
  const char* name;      // "NCCL"
  const char* file;      // "libnccl.so.2"
  const char* variable;  // of the environment, that names the file: "LOCKSTEP_NCCL_LIB"
  const char* function;  // by which it is known: "ncclGetVersion"
  const char* not_it;    // what a library without a function is: "not NCCL, or one before 2.27"
  const char* remedy;
};

// Where to look, in this order: what the variable names; without it the file as the dynamic linker finds it, then in
// lib64 and lib of CUDA_HOME, CUDA_PATH and /usr/local/cuda.
std::vector<std::string> foreign_candidates(const ForeignNames& names, const Environment& environment);

// Once opened it stays: such libraries have threads and exit handlers of their own.
class ForeignLibrary {
 public:
  // Opens the first of the candidates that there is. Throws BackendUnavailable with what was looked for and the remedy.
  ForeignLibrary(const ForeignNames& names, std::span<const std::string> candidates);

  const std::string& path() const { return path_; }

  // The address of a function, which becomes a pointer of the type that it is assigned to.
  struct Address {
    void* value;
    template <typename Function>
    operator Function*() const {  // NOLINT(google-explicit-constructor): a table names each type once
      return reinterpret_cast<Function*>(value);
    }
  };
  // Throws BackendUnavailable where the library has none of that name.
  Address need(const char* name) const;

 private:
  ForeignNames names_;
  void* handle_ = nullptr;
  std::string path_;
};

}  // namespace lockstep::cuda
