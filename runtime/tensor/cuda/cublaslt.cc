// SPDX-License-Identifier: Apache-2.0
#include "runtime/tensor/cuda/cublaslt.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "runtime/base/mutex.h"

#define LOCKSTEP_TEXT_OF(number) LOCKSTEP_TEXT(number)
#define LOCKSTEP_TEXT(number) #number

namespace lockstep::cuda {
namespace {

constexpr ForeignNames kNames = {
    .who = "matrix product on cuda",
    .name = "cuBLASLt",
    .file = "libcublasLt.so." LOCKSTEP_TEXT_OF(CUBLAS_VER_MAJOR),
    .variable = kCublasLtVariable,
    .function = "cublasLtGetVersion",
    .not_it = "not cuBLASLt",
    .remedy = "install libcublas-" LOCKSTEP_TEXT_OF(
        CUBLAS_VER_MAJOR) "-0 or the CUDA toolkit, or set LOCKSTEP_CUBLASLT_LIB to the file, also of a Python package "
                          "(nvidia-cublas: .../site-packages/nvidia/.../lib/libcublasLt.so." LOCKSTEP_TEXT_OF(
                              CUBLAS_VER_MAJOR) ")"};

}  // namespace

std::string CublasLt::describe(cublasStatus_t status) const {
  return fmt::format("{} ({}, {})", status_text(status), status_name(status), static_cast<int>(status));
}

std::vector<std::string> cublaslt_candidates(const Environment& environment) {
  return foreign_candidates(kNames, environment);
}

CublasLt load_cublaslt(std::span<const std::string> candidates) {
  const CublasLt functions{.library = ForeignLibrary(kNames, candidates)};
  if (const std::size_t major = functions.version() / 10000; major != CUBLAS_VER_MAJOR) {
    throw BackendUnavailable(fmt::format("{}: {} is cuBLASLt {}, but this lockstep was built with {}; {}", kNames.who,
                                         functions.library.path(), major, CUBLAS_VER_MAJOR, kNames.remedy));
  }
  return functions;
}

const CublasLt& cublaslt() {
  // For good: products may be asked for after main() has ended.
  static Mutex& mutex = *new Mutex;
  static const CublasLt* loaded = nullptr;
  MutexLock lock(mutex);
  if (loaded == nullptr) loaded = new CublasLt(load_cublaslt(cublaslt_candidates(Environment::of_process())));
  return *loaded;
}

}  // namespace lockstep::cuda
