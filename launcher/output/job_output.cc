// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/job_output.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "launcher/output/log_folder.h"
#include "lockstep/base/error.h"
#include "runtime/base/regular_file.h"

namespace lockstep::launcher {
namespace {

LogFile file_of_job(const OutputOptions& options) {
  if (options.log_dir.empty()) return {};
  return LogFile(job_log(options.log_dir, options.hosts, options.start, options.node_rank));
}

// Locks the job's file, before it is emptied, until the lock is closed. Throws InvalidArgument if another process has
// it. A file system without locks grants none.
UniqueFd lock_log_dir(const OutputOptions& options) {
  if (options.log_dir.empty()) return {};
  UniqueFd file = open_regular(job_log(options.log_dir, options.hosts, options.start, options.node_rank),
                               O_WRONLY | O_CREAT | O_NOFOLLOW, 0644);
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  if (!file || fcntl(file.get(), F_SETLK, &lock) == 0 || (errno != EAGAIN && errno != EACCES)) return file;
  fcntl(file.get(), F_GETLK, &lock);
  throw InvalidArgument(
      fmt::format("--log-dir {}: another lockstep run (pid {}) writes its files to this folder; give this run its own "
                  "folder, or end the other run",
                  options.log_dir, lock.l_pid));
}

}  // namespace

JobOutput::JobOutput(OutputOptions options, Console& console)
    : options_(std::move(options)),
      console_(console),
      lock_(lock_log_dir(options_)),
      log_(recent_, file_of_job(options_)) {
  console_.record([this](std::string_view text) {
    // A write failure is reported once; the report is itself a message that arrives here again.
    if (const auto problem = log_.message(text); !problem.empty()) console_.message(problem);
  });
}

// The console stops recording before the log ends: a message about the log's end would be written to the ended log.
JobOutput::~JobOutput() {
  console_.record({});
  if (const auto problem = log_.close(); !problem.empty()) console_.message(problem);
}

bool JobOutput::is_shown(int rank, Stream stream) const {
  const bool wanted = options_.log_dir.empty() || (stream == Stream::out ? options_.tee.out : options_.tee.err);
  return wanted && options_.shown.contains(rank);
}

RankOutput JobOutput::open(int rank, Stream stream, UniqueFd fd, int start) {
  RankOutput::Sinks sinks{.log = &log_, .shown = is_shown(rank, stream)};
  sinks.keep_lines = stream == Stream::err && (!options_.log_dir.empty() || options_.keep_last_lines || !sinks.shown);
  if (!options_.log_dir.empty()) {
    const std::string folder = log_folder(options_.log_dir, start);
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) throw SystemError(fmt::format("make the folder {}", folder), error.value());
    sinks.file = LogFile(rank_log(options_.log_dir, start, rank, stream));
  }
  return {rank, stream, std::move(fd), std::move(sinks)};
}

std::string JobOutput::describe_lost() const {
  return log_.lost_bytes() == 0 ? std::string() : fmt::format("{} bytes of {}", log_.lost_bytes(), log_.path());
}

}  // namespace lockstep::launcher
