// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/hash.h"

#include <xxhash.h>

#include <new>

namespace lockstep {

std::uint64_t hash64(const void* data, std::size_t bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(data, bytes, seed);
}

void Hasher64::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

Hasher64::Hasher64(std::uint64_t seed) : state_(XXH3_createState()) {
  if (!state_) throw std::bad_alloc();
  XXH3_64bits_reset_withSeed(state_.get(), seed);
}

void Hasher64::add(const void* data, std::size_t bytes) { XXH3_64bits_update(state_.get(), data, bytes); }

std::uint64_t Hasher64::value() const { return XXH3_64bits_digest(state_.get()); }

}  // namespace lockstep
