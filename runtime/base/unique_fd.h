// SPDX-License-Identifier: Apache-2.0
// Sole owner of a file descriptor; closes it when destroyed.
#pragma once

#include <utility>

#include "runtime/base/internal_api.h"

namespace lockstep {

class LOCKSTEP_INTERNAL_API UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  // Gives the descriptor away; the caller closes it.
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1);

 private:
  int fd_ = -1;
};

// Another descriptor of the same file, which a program that this one becomes does not get. Throws SystemError.
LOCKSTEP_INTERNAL_API UniqueFd duplicate(int fd);

}  // namespace lockstep
