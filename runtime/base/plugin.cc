// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/plugin.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "lockstep/base/error.h"
#include "runtime/base/io.h"
#include "runtime/base/printable.h"
#include "runtime/base/unique_fd.h"

#ifndef LOCKSTEP_BUILD_STAMP
#error "the build's stamp: see cmake/LockstepPlugins.cmake"
#endif

namespace lockstep {
namespace {

std::string read_file(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) throw SystemError(fmt::format("open '{}'", path), errno);
  std::string content;
  if (!read_all(fd.get(), content)) throw SystemError(fmt::format("read '{}'", path), errno);
  return content;
}

// "libmpi.so.40: cannot open shared object file: No such file or directory": the loader's words for a library that is
// not there. Its words for the plug-in's own file begin with a slash.
std::string missing_library_of(const std::string& error) {
  const std::size_t colon = error.find(": cannot open shared object file");
  if (colon == std::string::npos || error.starts_with('/')) return {};
  return error.substr(0, colon);
}

}  // namespace

std::string_view build_stamp() { return LOCKSTEP_BUILD_STAMP; }

std::optional<std::string> stamp_of_file(const std::string& path) {
  const std::string content = read_file(path);
  const std::size_t mark = content.find(kPluginStampMark);
  if (mark == std::string::npos) return std::nullopt;
  const std::size_t begin = mark + kPluginStampMark.size();
  const std::size_t end = content.find('\0', begin);
  if (end == std::string::npos) return std::nullopt;
  return content.substr(begin, end - begin);
}

std::vector<std::string> plugin_folders(const Environment& environment, const std::string& module) {
  std::vector<std::string> folders;
  const auto add = [&](std::string folder) {
    if (folder.empty() || std::find(folders.begin(), folders.end(), folder) != folders.end()) return;
    folders.push_back(std::move(folder));
  };
  std::string path = environment.get("LOCKSTEP_PLUGIN_PATH").value_or("");
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find(':', begin), path.size());
    add(path.substr(begin, end - begin));
    begin = end + 1;
  }
  const std::filesystem::path beside = std::filesystem::path(module).parent_path();
  add(beside.string());
  add((beside.parent_path() / "lib").string());
  return folders;
}

std::string path_of_this_module() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&path_of_this_module), &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code failed;
  // A program's name may be relative to where it was started.
  const auto absolute = std::filesystem::canonical(info.dli_fname, failed);
  if (!failed) return absolute.string();
  return std::filesystem::read_symlink("/proc/self/exe", failed).string();
}

void* LoadedPlugin::symbol(const char* name) const {
  void* const address = handle == nullptr ? nullptr : dlsym(handle, name);
  if (address == nullptr) {
    throw BackendUnavailable(fmt::format(
        "plug-in '{}' has no function {}; build lockstep and its plug-ins from the same version", path, name));
  }
  return address;
}

LoadedPlugin load_plugin(std::string_view name, std::span<const std::string> folders, std::string_view stamp) {
  const std::string file = fmt::format("liblockstep_{}.so", name);
  LoadedPlugin plugin;
  for (const std::string& folder : folders) {
    const std::string candidate = folder + "/" + file;
    if (::access(candidate.c_str(), F_OK) != 0) continue;
    plugin.path = candidate;
    break;
  }
  if (plugin.path.empty()) {
    plugin.problem = fmt::format("{} is not in {}", file, fmt::join(folders, ", "));
    return plugin;
  }
  try {
    const auto own = stamp_of_file(plugin.path);
    if (!own) {
      plugin.problem = fmt::format("{} is not a plug-in of lockstep: it has no stamp", plugin.path);
    } else if (*own != stamp) {
      plugin.problem = fmt::format("{} is of another build: its stamp is '{}', this library's is '{}'", plugin.path,
                                   printable(*own, 200), stamp);
    }
  } catch (const SystemError& error) {
    plugin.problem = error.what();
  }
  if (!plugin.problem.empty()) return plugin;
  plugin.handle = dlopen(plugin.path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (plugin.handle != nullptr) return plugin;
  const std::string error = dlerror();
  plugin.missing_library = missing_library_of(error);
  plugin.problem = plugin.missing_library.empty() ? fmt::format("{} can't be loaded: {}", plugin.path, error)
                                                  : fmt::format("{} needs {}, which this machine does not have",
                                                                plugin.path, plugin.missing_library);
  return plugin;
}

LoadedPlugin load_own_plugin(std::string_view name, const PluginNeeds& needs) {
  const std::string module = path_of_this_module();
  LoadedPlugin plugin;
  if (!std::filesystem::path(module).filename().string().starts_with("liblockstep")) {
    plugin.problem = fmt::format(
        "'{}' is a plug-in of liblockstep.so, and this program ({}) has the runtime linked in; link lockstep::core",
        name, module);
    return plugin;
  }
  plugin = load_plugin(name, plugin_folders(Environment::of_process(), module), build_stamp());
  if (plugin.problem.empty()) return plugin;
  std::string remedy = "build lockstep and its plug-ins together";
  if (!plugin.missing_library.empty()) remedy = "install " + needs.runs_with;
  if (plugin.path.empty()) {
    // The option that builds the plug-in cuda builds cuda_nn too.
    std::string upper(name.substr(0, name.find('_')));
    for (char& c : upper) c = static_cast<char>(c - 'a' + 'A');
    remedy = fmt::format("build it with LOCKSTEP_{}=ON, which takes {}, or set LOCKSTEP_PLUGIN_PATH to its folder",
                         upper, needs.built_with);
  }
  plugin.problem = fmt::format("plug-in '{}': {}; {}", name, plugin.problem, remedy);
  return plugin;
}

}  // namespace lockstep
