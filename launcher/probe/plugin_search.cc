#include "launcher/probe/plugin_search.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <filesystem>
#include <string_view>

#include "runtime/base/host.h"

namespace lockstep::probe {
namespace {

namespace fs = std::filesystem;

// The folder of liblockstep.so, as the loader found it.
std::string library_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&host_name), &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code error;
  const auto path = fs::canonical(info.dli_fname, error);
  return error ? std::string() : path.parent_path().string();
}

}  // namespace

std::vector<std::string> plugin_folders(const Environment& environment) {
  std::vector<std::string> folders;
  std::string_view rest;
  const auto path = environment.get("LOCKSTEP_PLUGIN_PATH").value_or("");
  for (rest = path; !rest.empty();) {
    const auto colon = rest.find(':');
    if (const auto folder = rest.substr(0, colon); !folder.empty()) folders.emplace_back(folder);
    rest = colon == std::string_view::npos ? std::string_view{} : rest.substr(colon + 1);
  }
  if (auto own = library_folder(); !own.empty()) folders.push_back(std::move(own));
  return folders;
}

std::vector<Plugin> find_plugins(const std::vector<std::string>& folders) {
  constexpr std::array<std::string_view, 3> kNames = {"cuda", "gloo", "mpi"};
  std::vector<Plugin> plugins;
  for (const auto name : kNames) {
    Plugin plugin{.name = std::string(name), .path = {}, .reason = {}};
    const auto file = fmt::format("liblockstep_{}.so", name);
    for (const auto& folder : folders) {
      std::error_code error;  // a folder that can't be read holds none for us
      if (plugin.path.empty() && fs::exists(fs::path(folder) / file, error)) plugin.path = fs::path(folder) / file;
    }
    plugin.reason =
        plugin.path.empty()
            ? fmt::format("this version of lockstep comes without it (no {} in {})", file, fmt::join(folders, ", "))
            : fmt::format("{} is there, but this version of lockstep loads no plug-ins yet", plugin.path);
    plugins.push_back(std::move(plugin));
  }
  return plugins;
}

}  // namespace lockstep::probe
