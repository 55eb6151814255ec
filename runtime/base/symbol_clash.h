// SPDX-License-Identifier: Apache-2.0
// A library of which the process has another one's functions already: LibTorch has an NCCL in itself. The
// dynamic linker would bind our calls, and those that the library makes to itself, to these. Opened with RTLD_DEEPBIND,
// a library looks among its own and those that it needs first.
//
// That does not go together with a malloc() that is not the C library's (jemalloc, tcmalloc, a sanitizer's), or an
// operator new that is not the C++ library's: what looks among its own first finds the C library's free(), and gets
// memory of the other malloc() from strdup() and the C++ library.
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
  std::string file = {};       // that has the function in this process; empty if there is no clash
  std::string allocator = {};  // the file of the malloc() or operator new that rules RTLD_DEEPBIND out; empty if none

  // Flags for dlopen(3) beside the others.
  LOCKSTEP_INTERNAL_API int flags() const;
  // Why `path`, a library called `name` ("NCCL") or one that needs it, can't be opened; without a remedy. Empty if it
  // can.
  LOCKSTEP_INTERNAL_API std::string problem(std::string_view name, std::string_view path) const;
};

// Whether a library that is opened now would find the function elsewhere than in its library.
LOCKSTEP_INTERNAL_API SymbolClash symbol_clash(const LibraryFunction& function);

// The file that has what lies at `address`; `otherwise` if none is known.
LOCKSTEP_INTERNAL_API std::string file_of_symbol(const void* address, const std::string& otherwise);

}  // namespace lockstep
