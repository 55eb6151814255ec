// SPDX-License-Identifier: Apache-2.0
// A Secret is the secret of a run. A process that has the secret may use the run's store.
//
// A secret is 256 random bits, written as 64 hex digits. A secret never appears in a log, an error message or a command
// line, and each copy wipes its bytes at its end.
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

  // Returns a new secret from the kernel's generator.
  static Secret random();
  // Parses 64 hex digits of either case. Throws InvalidArgument, which tells the number of digits but not the digits.
  static Secret parse(std::string_view hex);
  // Returns the secret of LOCKSTEP_STORE_SECRET. If that variable is unset, returns the secret in the file that
  // LOCKSTEP_STORE_SECRET_FILE names. If both variables are unset, returns nullopt. The file holds the digits and at
  // most a line's end. The file must be a regular file of mode 0600 or stricter that belongs to this user or to root.
  // On a file system that is mounted read-only, the file may have any mode. Throws InvalidArgument, with the variable
  // or path and the remedy, for another file or another text.
  static std::optional<Secret> of_environment(const Environment& environment);

  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;
  ~Secret();

  // Returns the digits, which are only for the environment of a rank.
  std::string hex() const;
  std::span<const std::byte, kBytes> bytes() const { return bytes_; }
  // Compares two secrets in constant time.
  bool operator==(const Secret& other) const;

 private:
  Secret() = default;

  std::array<std::byte, kBytes> bytes_{};
};

}  // namespace lockstep::store
