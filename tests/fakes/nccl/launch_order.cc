// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/nccl/launch_order.h"

#include <algorithm>
#include <cstddef>

namespace lockstep::fake_nccl {
namespace {

// "launch 3 of communicator 1f3a", as the end of its id has it.
std::string text_of(std::ptrdiff_t launch, const std::string& id) {
  return "launch " + std::to_string(launch) + " of communicator " +
         id.substr(id.size() - std::min<std::size_t>(id.size(), 8));
}

}  // namespace

// Never destroyed: threads of the fake may outlive main().
LaunchOrder& LaunchOrder::get() {
  static LaunchOrder* const order = new LaunchOrder;
  return *order;
}

void LaunchOrder::forget(const std::string& id, int device) {
  const std::lock_guard lock(mutex_);
  std::erase(by_device_[device], id);
}

std::string LaunchOrder::launched(const std::string& id, int device) {
  const std::lock_guard lock(mutex_);
  Launches& own = by_device_[device];
  own.push_back(id);
  if (std::all_of(own.begin(), own.end(), [&](const std::string& one) { return one == id; })) return {};
  const auto number = std::count(own.begin(), own.end(), id);
  for (const auto& [other_device, theirs] : by_device_) {
    // Their launch of that number.
    auto same = theirs.begin();
    for (std::ptrdiff_t before = 0; same != theirs.end() && (*same != id || ++before < number);) ++same;
    if (same == theirs.end()) continue;
    for (const std::string& other : own) {
      const auto here = std::count(own.begin(), own.end(), other), there = std::count(theirs.begin(), same, other);
      if (other == id || here <= there || std::count(same, theirs.end(), other) == 0) continue;
      return "crossed orders: device " + std::to_string(device) + " has " + text_of(there + 1, other) + " before " +
             text_of(number, id) + ", device " + std::to_string(other_device) + " has it behind";
    }
  }
  return {};
}

}  // namespace lockstep::fake_nccl
