#include "runtime/ddp/used_map.h"

#include <algorithm>

namespace lockstep {
namespace {

void write_flags(std::span<const char> used, float* map) {
  for (std::size_t i = 0; i < used.size(); ++i) map[i] = used[i] ? 1.0f : 0.0f;
}

// The ranks that used a parameter, over the summed weight.
void read_flags(const float* map, std::span<char> used) {
  for (std::size_t i = 0; i < used.size(); ++i) used[i] = map[i] > 0 ? 1 : 0;
}

}  // namespace

UsedMap::UsedMap(GradientMemory& memory, std::size_t parameters) : memory_(memory), used_by_some_(parameters, 0) {}

// The host may be steps ahead of the device: what a copy still reads or writes must rest.
UsedMap::Copy& UsedMap::unused(std::vector<Copy>& copies) {
  const auto rests = [](const Copy& copy) { return copy.done.reached(); };
  const auto found = std::find_if(copies.begin(), copies.end(), rests);
  if (found != copies.end()) return *found;
  const DeviceId device = memory_.stream().device;
  copies.push_back({memory_.device()->allocate_pinned(used_by_some_.size() * sizeof(float), device), Event(device)});
  return copies.back();
}

void UsedMap::write(std::size_t offset, std::span<const char> used) {
  if (memory_.device() == nullptr) return write_flags(used, reinterpret_cast<float*>(memory_.at(offset)));
  Copy& copy = unused(writes_);
  write_flags(used, copy.values());
  memory_.device()->copy(memory_.at(offset), copy.memory.get(), used.size() * sizeof(float), memory_.stream());
  copy.done.record(memory_.stream());
}

void UsedMap::read(std::size_t offset) {
  if (memory_.device() == nullptr) return read_flags(reinterpret_cast<const float*>(memory_.at(offset)), used_by_some_);
  Copy& copy = unused(reads_);
  memory_.device()->copy(copy.memory.get(), memory_.at(offset), used_by_some_.size() * sizeof(float), memory_.stream());
  copy.done.record(memory_.stream());
  awaited_ = static_cast<std::size_t>(&copy - reads_.data());
  is_awaited_ = true;
}

bool UsedMap::at(std::size_t parameter, const Deadline& deadline) {
  if (is_awaited_) {
    reads_[awaited_].done.synchronize(deadline);
    read_flags(reads_[awaited_].values(), used_by_some_);
    is_awaited_ = false;
  }
  return used_by_some_[parameter] != 0;
}

}  // namespace lockstep
