// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/snapshot/rescue_claim.h"

#include <fcntl.h>

#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/io.h"
#include "runtime/base/logging.h"
#include "runtime/base/regular_file.h"
#include "runtime/checkpoint/file_error.h"
#include "runtime/checkpoint/snapshot/files.h"
#include "runtime/checkpoint/snapshot/series.h"
#include "runtime/checkpoint/storage.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRescue = ".rescue";
// F_OFD_SETLKW knows no deadline.
constexpr std::chrono::milliseconds kBetweenLooks{20};

UniqueFd open_claim(const fs::path& path, int flags) {
  return open_regular(path.string(), flags | O_RDWR | O_NOFOLLOW);
}

}  // namespace

std::optional<RescueClaim> RescueClaim::take(const fs::path& folder, std::int64_t step, std::int64_t generation,
                                             const std::function<bool()>& is_saved, const Deadline& deadline) {
  make_folders(folder);
  const fs::path path = folder / (name_of_snapshot(step, generation) + std::string(kRescue));
  // O_EXCL tells the first process, for file systems without locks. The file stays when the claim ends: a process that
  // had it open would else lock a file that the next one does not see.
  UniqueFd fd = open_claim(path, O_CREAT | O_EXCL);
  const bool is_first = static_cast<bool>(fd);
  if (!fd && errno == EEXIST) fd = open_claim(path, O_CREAT);
  if (!fd) throw file_error("snapshots: making", path, "", errno);
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  while (uninterrupted([&] { return ::fcntl(fd.get(), F_OFD_SETLK, &lock); }) != 0) {
    if (errno != EAGAIN && errno != EACCES) {
      if (is_first) return RescueClaim(std::move(fd));
      return std::nullopt;
    }
    if (deadline.expired()) {
      log_warn(
          "snapshots: this process does not save step {}: another process holds the lock '{}' to save this step, but "
          "has not finished yet; look at the other ranks' output",
          step, path.string());
      return std::nullopt;
    }
    std::this_thread::sleep_for(kBetweenLooks);
  }
  // Only with the lock: the holder before may have saved the step, or died before it did.
  if (is_saved()) return std::nullopt;
  return RescueClaim(std::move(fd));
}

void remove_rescue_claims(const fs::path& folder, std::int64_t generation) {
  bool has_removed = false;
  for (const std::string& name : names_in(folder)) {
    const auto numbers = numbers_of(name, kRescue);
    if (numbers && numbers->generation < generation) has_removed = remove_name(folder / name) || has_removed;
  }
  if (has_removed) sync_folder(folder);
}

}  // namespace lockstep::checkpoint
