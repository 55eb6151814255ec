// SPDX-License-Identifier: Apache-2.0
// Hashes that are equal on every machine (xxHash, https://xxhash.com): to compare, never to protect.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "runtime/base/internal_api.h"

struct XXH3_state_s;

namespace lockstep {

// XXH3, 64 bits.
LOCKSTEP_INTERNAL_API std::uint64_t hash64(const void* data, std::size_t bytes, std::uint64_t seed = 0);
inline std::uint64_t hash64(std::string_view text, std::uint64_t seed = 0) {
  return hash64(text.data(), text.size(), seed);
}

// hash64 of bytes that come in pieces, of all of them together.
class Hasher64 {
 public:
  explicit Hasher64(std::uint64_t seed = 0);
  void add(const void* data, std::size_t bytes);
  // The hash of the bytes that were added until now.
  std::uint64_t value() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

}  // namespace lockstep
