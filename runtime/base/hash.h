// Hashes that are equal on every machine (xxHash, https://xxhash.com): to compare, never to protect.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lockstep {

// XXH3, 64 bits.
std::uint64_t hash64(const void* data, std::size_t bytes, std::uint64_t seed = 0);
inline std::uint64_t hash64(std::string_view text, std::uint64_t seed = 0) {
  return hash64(text.data(), text.size(), seed);
}

}  // namespace lockstep
