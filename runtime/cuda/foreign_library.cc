// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/foreign_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "runtime/base/symbol_clash.h"

namespace lockstep::cuda {
namespace {

// Null where there is none, with dlerror() set.
void* open_library(const ForeignNames& names, const std::string& path) {
  if (void* const same = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) return same;
  const SymbolClash clash = symbol_clash({.name = names.function, .library = path});
  const std::string problem = clash.problem(names.name, path);
  if (problem.empty()) return ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | clash.flags());
  // Loaded lazily and closed again, a file runs nothing but its constructors: it shows whether there is a library.
  void* const trial = ::dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (trial == nullptr) return nullptr;
  ::dlclose(trial);
  throw BackendUnavailable(fmt::format("{}: {}; set {} to {}, or run without that malloc library", names.who, problem,
                                       names.variable, clash.file));
}

}  // namespace

std::vector<std::string> foreign_candidates(const ForeignNames& names, const Environment& environment) {
  if (const auto path = environment.get(names.variable); path && !path->empty()) return {*path};
  std::vector<std::string> result = {names.file};
  std::vector<std::string> folders;
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const auto folder = environment.get(name); folder && !folder->empty()) folders.push_back(*folder);
  }
  folders.emplace_back("/usr/local/cuda");
  for (const std::string& folder : folders) {
    for (const char* part : {"lib64", "lib"}) result.push_back(fmt::format("{}/{}/{}", folder, part, names.file));
  }
  return result;
}

ForeignLibrary::ForeignLibrary(const ForeignNames& names, std::span<const std::string> candidates) : names_(names) {
  std::string problems;
  for (const std::string& path : candidates) {
    path_ = path;
    handle_ = open_library(names, path);
    if (handle_ != nullptr) break;
    const char* const why = ::dlerror();
    problems += fmt::format("{}{}", problems.empty() ? "" : "; ", why == nullptr ? path : std::string(why));
  }
  if (handle_ == nullptr) {
    throw BackendUnavailable(
        fmt::format("{}: the library can't be loaded ({}); {}", names.who, problems, names.remedy));
  }
  if (void* const known = ::dlsym(handle_, names.function)) path_ = file_of_symbol(known, path_);
}

ForeignLibrary::Address ForeignLibrary::need(const char* name) const {
  if (void* const address = ::dlsym(handle_, name)) return {address};
  throw BackendUnavailable(fmt::format("{}: the library {} has no function {}: the library is {}; {}", names_.who,
                                       path_, name, names_.not_it, names_.remedy));
}

}  // namespace lockstep::cuda
