// SPDX-License-Identifier: Apache-2.0
// The secret of a run: a process that has it may use the run's store.
//
// It is 256 random bits, written as 64 hex digits. It never appears in a log, an error message or a command line, and
// the last copy wipes its bytes.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/base/environment.h"

namespace lockstep::store {

class Secret {
 public:
  static constexpr std::size_t kBytes = 32;

  // A new secret, from the kernel's generator.
  static Secret random();
  // Parses 64 hex digits of either case. InvalidArgument tells their number but not the digits.
  static Secret parse(std::string_view hex);
  // The value of LOCKSTEP_STORE_SECRET; if that is unset, the contents of the file that LOCKSTEP_STORE_SECRET_FILE
  // names; nullopt if both are unset. The file holds the digits and at most a line's end. InvalidArgument, naming
  // variable or path and the remedy, unless it is a regular file that belongs to this user or to root, of mode 0600 or
  // stricter; on a file system that is mounted read-only any mode will do.
  static std::optional<Secret> of_environment(const Environment& environment);

  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;
  ~Secret();

  // The digits, only for the environment of a rank.
  std::string hex() const;
  std::span<const std::byte, kBytes> bytes() const { return bytes_; }
  // Compares in constant time.
  bool operator==(const Secret& other) const;

 private:
  Secret() = default;

  std::array<std::byte, kBytes> bytes_{};
};

}  // namespace lockstep::store
