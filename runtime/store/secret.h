// SPDX-License-Identifier: Apache-2.0
// The secret of a run: who has it may use the run's store.
//
// 256 random bits, written as 64 hex digits. It never appears in a log or an error message, nor on a command line, and
// its bytes are wiped when the last copy goes.
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

  // A new one, from the kernel's generator.
  static Secret random();
  // From 64 hex digits of either case. InvalidArgument, which tells their number but not what they are.
  static Secret parse(std::string_view hex);
  // LOCKSTEP_STORE_SECRET; if that is unset, the file that LOCKSTEP_STORE_SECRET_FILE names; nothing if both are unset.
  // The file holds the digits and at most a line's end. InvalidArgument, naming variable or path and the remedy, unless
  // it is a regular file that belongs to this user or to root, of mode 0600 or stricter unless its file system is
  // mounted read-only.
  static std::optional<Secret> of_environment(const Environment& environment);

  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;
  ~Secret();

  // For the environment of a rank, nothing else.
  std::string hex() const;
  std::span<const std::byte, kBytes> bytes() const { return bytes_; }
  // In constant time.
  bool operator==(const Secret& other) const;

 private:
  Secret() = default;

  std::array<std::byte, kBytes> bytes_{};
};

}  // namespace lockstep::store
