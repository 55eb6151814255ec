// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/snapshot/series_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>

#include "lockstep/base/error.h"
#include "runtime/base/io.h"
#include "runtime/base/logging.h"
#include "runtime/base/printable.h"
#include "runtime/base/regular_file.h"
#include "runtime/checkpoint/file_error.h"
#include "runtime/checkpoint/snapshot/generations.h"
#include "runtime/checkpoint/storage.h"

namespace lockstep::checkpoint {

namespace fs = std::filesystem;

SeriesLock::SeriesLock(const fs::path& folder, const std::string& who) {
  make_folders(folder);
  const fs::path path = folder / "lock";
  fd_ = open_regular(path.string(), O_RDWR | O_CREAT | O_NOFOLLOW);
  if (!fd_) throw file_error("snapshots: opening", path, "", errno);
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  if (uninterrupted([&] { return ::fcntl(fd_.get(), F_OFD_SETLK, &lock); }) != 0) {
    if (errno == EAGAIN || errno == EACCES) {
      std::string holder;
      read_all(fd_.get(), holder, 512);
      throw InvalidArgument(
          fmt::format("snapshots: the folder '{}' is in use by {}; two jobs can't share a folder: give this job "
                      "another folder, or end the other job",
                      folder.string(), holder.empty() ? "another process" : printable(holder, 200)));
    }
    log_warn(
        "snapshots: '{}' can't be locked ({}): a second job in this folder would be noticed only when it saves; give "
        "each job a folder of its own",
        path.string(), errno_text(errno));
    return;
  }
  // The name is for a second job's message alone. It is written with the lock held, so that it is the holder's; after a
  // crash the lock is gone and the name stays, until the next holder replaces it.
  const std::string text = fmt::format("{} since {}", who, utc_now());
  const bool is_written = ::ftruncate(fd_.get(), 0) == 0 && write_all(fd_.get(), text) == text.size();
  // On a full disk the lock still holds, and older snapshots are removed later to free space.
  if (!is_written && errno != ENOSPC && errno != EDQUOT) throw file_error("snapshots: writing", path, "", errno);
}

}  // namespace lockstep::checkpoint
