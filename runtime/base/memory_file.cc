// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/memory_file.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "runtime/base/resource_limit.h"

namespace lockstep {

UniqueFd make_memory_file(const char* name, std::size_t bytes) {
  if (!may_file_have(bytes)) return {};
  UniqueFd file(::memfd_create(name, MFD_CLOEXEC));
  if (file && ::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) file.reset();
  return file;
}

std::string memory_file_of(int pid, const char* name) {
  namespace fs = std::filesystem;
  std::error_code error;
  // The kernel shows it as "/memfd:NAME (deleted)".
  const std::string wanted = fmt::format("/memfd:{} ", name);
  for (fs::directory_iterator it(fmt::format("/proc/{}/fd", pid), error), end; !error && it != end;
       it.increment(error)) {
    std::error_code gone;
    if (fs::read_symlink(it->path(), gone).native().starts_with(wanted)) return it->path();
  }
  return {};
}

}  // namespace lockstep
