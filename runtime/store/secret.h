// SPDX-License-Identifier: Apache-2.0
// A Secret holds the secret that all processes of a run share. Only a process that knows the secret may use the run's
// store.
//
// A secret has 256 random bits, and is written as 64 hex digits. A secret never appears in a log, an error message or a
// command line. The destructor of each Secret overwrites the object's bytes.
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

  // Returns a new secret from the kernel's random number generator.
  static Secret random();
  // Parses 64 hex digits of either case. Throws InvalidArgument for any other text. The message of the InvalidArgument
  // does not contain `hex`.
  static Secret parse(std::string_view hex);
  // Returns the secret in the environment variable LOCKSTEP_STORE_SECRET. If LOCKSTEP_STORE_SECRET is unset, returns
  // the secret in the file that LOCKSTEP_STORE_SECRET_FILE names. If both variables are unset, returns nullopt. The
  // secret's file must contain only the 64 hex digits, and may end with a newline. The secret's file must be a regular
  // file of mode 0600 or stricter, and must belong to this user or to root. On a read-only file system, the secret's
  // file may have any mode. If the secret or the secret's file is not valid, throws InvalidArgument with a message that
  // names the variable and the remedy.
  static std::optional<Secret> of_environment(const Environment& environment);

  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;
  ~Secret();

  // Returns the 64 hex digits of the secret. Pass the digits only to a rank, through the rank's environment.
  std::string hex() const;
  std::span<const std::byte, kBytes> bytes() const { return bytes_; }
  // Compares two secrets in constant time.
  bool operator==(const Secret& other) const;

 private:
  Secret() = default;

  std::array<std::byte, kBytes> bytes_{};
};

}  // namespace lockstep::store
