// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/find_program.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

#include "launcher/base/exit_codes.h"
#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

enum class Found { runnable, absent, folder, not_executable };

Found judge(const std::string& path, int& error) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) {
    error = errno;
    return Found::absent;
  }
  if (S_ISDIR(status.st_mode)) return Found::folder;
  if (access(path.c_str(), X_OK) != 0 || !S_ISREG(status.st_mode)) return Found::not_executable;
  return Found::runnable;
}

FoundProgram explain(const std::string& path, Found verdict, int error) {
  switch (verdict) {
    case Found::runnable: return {path, 0, {}};
    case Found::folder: return {{}, kExitNotExecutable, fmt::format("'{}' is a folder; name the program in it", path)};
    case Found::not_executable:
      return {{},
              kExitNotExecutable,
              fmt::format("'{}' is not executable; chmod +x it, or name its interpreter first "
                          "(such as python3 {})",
                          path, path)};
    case Found::absent: break;
  }
  return {{}, kExitNotFound, fmt::format("program '{}' was not found: {}; correct its path", path, errno_text(error))};
}

}  // namespace

FoundProgram find_program(const std::string& name, const Environment& environment) {
  int error = 0;
  if (name.empty()) return {{}, kExitNotFound, "the program's name is empty"};
  if (name.find('/') != std::string::npos) {
    const auto verdict = judge(name, error);
    return explain(name, verdict, error);
  }

  const std::string search = environment.get("PATH").value_or("/usr/local/bin:/usr/bin:/bin");
  std::string refused;  // found, but not executable; the search continues, as in shells
  std::string_view rest = search;
  while (true) {
    const auto colon = rest.find(':');
    const std::string_view folder = rest.substr(0, colon);
    const std::string path = fmt::format("{}/{}", folder.empty() ? "." : folder, name);
    const auto verdict = judge(path, error);
    if (verdict == Found::runnable) return {path, 0, {}};
    if (verdict == Found::not_executable && refused.empty()) refused = path;
    if (colon == std::string_view::npos) break;
    rest.remove_prefix(colon + 1);
  }
  if (!refused.empty()) return explain(refused, Found::not_executable, 0);
  const bool is_here = access(name.c_str(), F_OK) == 0;
  return {{},
          kExitNotFound,
          fmt::format("program '{}' was not found in PATH{}", name,
                      is_here ? fmt::format("; to start the file in this folder, give ./{}", name)
                              : "; give its path, such as ./" + name)};
}

}  // namespace lockstep::launcher
