// SPDX-License-Identifier: Apache-2.0
// Bytes that a rank holds for training, by what for: on the host and on its device together. Known from the library's
// own objects, which each count theirs for as long as they live.
//
// Threads: any. Failure: none.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "runtime/base/internal_api.h"

namespace lockstep::trace {

enum class Held : std::uint8_t {
  weights,          // parameters of DistributedDataParallels
  gradients,        // arenas of Reducers
  optimizer_state,  // of lockstep's optimizers: with shards this rank's
};
inline constexpr std::size_t kHeld = static_cast<std::size_t>(Held::optimizer_state) + 1;
// Bytes by Held; 0: nothing that is known.
using HeldBytes = std::array<std::int64_t, kHeld>;
constexpr std::string_view name_of(Held held) {
  constexpr std::array<std::string_view, kHeld> kNames = {"weights", "gradients", "optimizer_state"};
  return kNames[static_cast<std::size_t>(held)];
}

class LOCKSTEP_INTERNAL_API HeldMemory {
 public:
  explicit HeldMemory(Held held) noexcept : held_(held) {}
  ~HeldMemory() { set(0); }
  HeldMemory(const HeldMemory&) = delete;
  HeldMemory& operator=(const HeldMemory&) = delete;

  void set(std::int64_t bytes) noexcept;
  void add(std::int64_t bytes) noexcept { set(bytes_ + bytes); }

 private:
  Held held_;
  std::int64_t bytes_ = 0;
};

}  // namespace lockstep::trace
