// SPDX-License-Identifier: Apache-2.0
// Sole owner of a file descriptor; closes it when destroyed.
//
// It never owns descriptor 0, 1 or 2: in a program that was started without one of its streams (`>&-`) the next
// descriptor gets that number, and the program's output would go into it.
#pragma once

#include <utility>

#include "runtime/base/internal_api.h"

namespace lockstep {

class LOCKSTEP_INTERNAL_API UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(above_streams(fd)) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) replace(std::exchange(other.fd_, -1));
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { replace(-1); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  // Gives the descriptor away; the caller closes it.
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1) { replace(above_streams(fd)); }

 private:
  // Moves a descriptor below 3 to a number from 3 on; it stays where it is if the process may have no more.
  static int above_streams(int fd) noexcept { return fd < 0 || fd > 2 ? fd : moved_above_streams(fd); }
  static int moved_above_streams(int fd) noexcept;
  void replace(int fd) noexcept;

  int fd_ = -1;
};

// Another descriptor of the same file, which a program that this one becomes does not get. Throws SystemError.
LOCKSTEP_INTERNAL_API UniqueFd duplicate(int fd);

}  // namespace lockstep
