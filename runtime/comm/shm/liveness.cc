// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/shm/liveness.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>

#include "lockstep/base/error.h"
#include "runtime/base/process_token.h"

namespace lockstep::shm {
namespace {

struct flock lock_of(int rank) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

}  // namespace

void hold_life_lock(int control_fd, int rank) {
  struct flock lock = lock_of(rank);
  if (::fcntl(control_fd, F_SETLK, &lock) != 0) {
    throw SystemError(fmt::format("shared memory: rank {} can't take the file lock that shows it is alive (if this "
                                  "host allows no fcntl locks, use backend 'tcp')",
                                  rank),
                      errno);
  }
}

bool process_is_gone(int control_fd, const ControlBlock& control, int rank) {
  if (control.info(rank).process == process_token()) return false;
  struct flock lock = lock_of(rank);
  if (::fcntl(control_fd, F_GETLK, &lock) != 0) {
    throw SystemError(fmt::format("shared memory: can't test the file lock that shows whether rank {} is alive (if "
                                  "this host allows no fcntl locks, use backend 'tcp')",
                                  rank),
                      errno);
  }
  return lock.l_type == F_UNLCK;
}

}  // namespace lockstep::shm
