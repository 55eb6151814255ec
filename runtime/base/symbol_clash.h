// SPDX-License-Identifier: Apache-2.0
// Detects that the process already has the functions of a library from another one: LibTorch contains an NCCL. The
// dynamic linker would bind our calls, and the library's calls to itself, to these functions. Opened with
// RTLD_DEEPBIND, a library looks among its own and those that it needs first.
//
// That does not go together with a malloc() that is not the C library's (jemalloc, tcmalloc, a sanitizer's), or an
// operator new that is not the C++ library's: a library that looks among its own first finds the C library's free(),
// and gets memory of the other malloc() from strdup() and the C++ library.
//
// Threads: any.
#pragma once

#include <string>
#include <string_view>

#include "runtime/base/internal_api.h"

namespace lockstep {

// A function by which a library is known, as the linker has it (mangled, of C++), and the library's name or path, as
// dlopen(3) takes it.
struct LibraryFunction {
  std::string name;
  std::string library;
};

struct SymbolClash {
  std::string file = {};       // the file that has the function in this process; empty without a clash
  std::string allocator = {};  // the file of the malloc() or operator new that rules RTLD_DEEPBIND out; empty if none

  // Flags for dlopen(3) beside the others.
  LOCKSTEP_INTERNAL_API int flags() const;
  // Why `path`, a library called `name` ("NCCL") or one that needs it, can't be opened; without a remedy. Empty if it
  // can.
  LOCKSTEP_INTERNAL_API std::string problem(std::string_view name, std::string_view path) const;
};

// Whether a library that is opened now would find the function elsewhere than in its library.
LOCKSTEP_INTERNAL_API SymbolClash symbol_clash(const LibraryFunction& function);

// The file that has the symbol at `address`; `otherwise` if none is known.
LOCKSTEP_INTERNAL_API std::string file_of_symbol(const void* address, const std::string& otherwise);

}  // namespace lockstep
