// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/file_error.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <string>

namespace lockstep::checkpoint {
namespace {

std::string remedy(int error_number) {
  switch (error_number) {
    case EACCES:
    case EPERM:
      return fmt::format("give uid {}, as which this process runs, the right to it, or name another folder",
                         ::geteuid());
    case EROFS: return "its file system is mounted read-only: mount it for writing, or name another folder";
    case ENOSPC:
      return "make room on its file system ('df -h'; 'df -i' for the number of files), or name another folder";
    case EDQUOT: return "this user's quota there is used up: make room, have it raised, or name another folder";
    case ENOENT:
    case ESTALE:
      return "it was moved or removed, or its file system is not mounted: put it back, or name another folder";
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG: return "name another path";
    case ENOTEMPTY:
    case EEXIST: return "something is in its place that is not lockstep's: move that away";
    case EMFILE:
    case ENFILE: return "raise the limit, or have the program keep fewer files open";
    case EFBIG: return "raise the limit, or name a folder on a file system that takes files of that size";
    case ENOMEM: return "free memory, or raise the limit";
    case EIO:
    case EUCLEAN:
    case EBADMSG:
    case ENXIO:
    case ENODEV: return "the disk, or the way to it, fails ('dmesg' says more): name a folder on another one";
    default: return "look at its file system, or name another folder";
  }
}

}  // namespace

SystemError file_error(std::string_view operation, const std::filesystem::path& path, std::string_view call,
                       int error_number) {
  return SystemError(fmt::format("{} '{}'{}{}", operation, path.string(), call.empty() ? "" : ": ", call), error_number,
                     remedy(error_number));
}

}  // namespace lockstep::checkpoint
