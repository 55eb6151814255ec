// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/symbol_clash.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace lockstep {
namespace {

// The file in which the process finds `name`; empty if it is the file of `neighbour`, a symbol that only the library
// that defines both has.
std::string replacement_of(const char* name, const char* neighbour) {
  const std::string library = file_of_symbol(::dlsym(RTLD_DEFAULT, neighbour), "");
  const std::string found = file_of_symbol(::dlsym(RTLD_DEFAULT, name), library);
  return found == library ? std::string() : found;
}

}  // namespace

std::string file_of_symbol(const void* address, const std::string& otherwise) {
  Dl_info info{};
  return ::dladdr(address, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : otherwise;
}

int SymbolClash::flags() const { return file.empty() ? 0 : RTLD_DEEPBIND; }

std::string SymbolClash::problem(std::string_view name, std::string_view path) const {
  if (file.empty() || allocator.empty()) return {};
  return fmt::format("this process has {} in {} already, and {} can't be kept apart from it with the malloc of {}",
                     name, file, path, allocator);
}

SymbolClash symbol_clash(const LibraryFunction& function) {
  const void* const found = ::dlsym(RTLD_DEFAULT, function.name.c_str());
  if (found == nullptr) return {};
  if (void* const library = ::dlopen(function.library.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD)) {
    const void* const own = ::dlsym(library, function.name.c_str());
    ::dlclose(library);  // others hold it
    if (own == found) return {};
  }
  SymbolClash clash{.file = file_of_symbol(found, "the program")};
  clash.allocator = replacement_of("malloc", "gnu_get_libc_version");
  // operator new(std::size_t), and a function that only the C++ library has.
  if (clash.allocator.empty()) clash.allocator = replacement_of("_Znwm", "_ZSt13get_terminatev");
  return clash;
}

}  // namespace lockstep
