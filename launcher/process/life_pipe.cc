// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/life_pipe.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>

#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

// Above the numbers that shells and programs use explicitly (exec 3<..., descriptor 10 of dash).
constexpr int kLowestInheritedFd = 200;

}  // namespace

LifePipe::LifePipe() : pipe_(make_pipe()), rank_end_(fcntl(pipe_.read_end.get(), F_DUPFD_CLOEXEC, kLowestInheritedFd)) {
  // A low limit of descriptors may exclude such numbers.
  if (!rank_end_) rank_end_.reset(fcntl(pipe_.read_end.get(), F_DUPFD_CLOEXEC, 0));
  if (!rank_end_) throw SystemError("fcntl F_DUPFD_CLOEXEC", errno);
  struct stat status {};
  if (fstat(rank_end_.get(), &status) != 0) throw SystemError("fstat", errno);
  name_ = fmt::format("{}:{}", rank_end_.get(), status.st_ino);
}

}  // namespace lockstep::launcher
