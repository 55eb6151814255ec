// SPDX-License-Identifier: Apache-2.0
#include "runtime/ddp/used_map.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace lockstep {
namespace {

// The number for each Use. The number for Use::without_rows is so small that its sum over any number of ranks stays far
// below the number for Use::with_rows.
constexpr float kValues[] = {0.0f, std::numeric_limits<float>::min(), 1.0f};

void write_values(std::span<const Use> used, float* map) {
  for (std::size_t i = 0; i < used.size(); ++i) map[i] = kValues[static_cast<std::size_t>(used[i])];
}

}  // namespace

UsedMap::UsedMap(GradientMemory& memory, std::size_t parameters) : memory_(memory), sums_(parameters, 0.0f) {}

// Returns an element of `copies` whose memory the device no longer uses, or a new element that unused() adds to
// `copies`. The device may still use other elements, because the host may be some steps ahead of the device.
UsedMap::Copy& UsedMap::unused(std::vector<Copy>& copies) {
  const auto rests = [](const Copy& copy) { return copy.done.reached(); };
  const auto found = std::find_if(copies.begin(), copies.end(), rests);
  if (found != copies.end()) return *found;
  const DeviceId device = memory_.stream().device;
  copies.push_back({memory_.device()->allocate_pinned(sums_.size() * sizeof(float), device), Event(device)});
  return copies.back();
}

void UsedMap::write(std::size_t offset, std::span<const Use> used) {
  if (memory_.device() == nullptr) return write_values(used, reinterpret_cast<float*>(memory_.at(offset)));
  Copy& copy = unused(writes_);
  write_values(used, copy.values());
  memory_.device()->copy(memory_.at(offset), copy.memory.get(), used.size() * sizeof(float), memory_.stream());
  copy.done.record(memory_.stream());
}

void UsedMap::read(std::size_t offset) {
  if (memory_.device() == nullptr) {
    std::memcpy(sums_.data(), memory_.at(offset), sums_.size() * sizeof(float));
    return;
  }
  Copy& copy = unused(reads_);
  memory_.device()->copy(copy.memory.get(), memory_.at(offset), sums_.size() * sizeof(float), memory_.stream());
  copy.done.record(memory_.stream());
  awaited_ = static_cast<std::size_t>(&copy - reads_.data());
  is_awaited_ = true;
}

bool UsedMap::at(std::size_t parameter, double divisor, const Deadline& deadline) {
  if (is_awaited_) {
    reads_[awaited_].done.synchronize(deadline);
    std::copy_n(reads_[awaited_].values(), sums_.size(), sums_.begin());
    is_awaited_ = false;
  }
  const double sum = sums_[parameter];
  return divisor > 0 ? sum * divisor > 0.5 : sum > 0;
}

}  // namespace lockstep
