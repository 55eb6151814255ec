// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/process_token.h"

#include <unistd.h>

#include "runtime/base/random_bytes.h"

namespace lockstep {

std::uint64_t process_token() {
  static const std::uint64_t drawn = [] {
    std::uint64_t bits = 0;
    fill_random(std::as_writable_bytes(std::span(&bits, 1)));
    return bits;
  }();
  // The finaliser of splitmix64, which is one to one: different pids give different tokens.
  std::uint64_t x = drawn + static_cast<std::uint64_t>(::getpid()) * 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

}  // namespace lockstep
