// SPDX-License-Identifier: Apache-2.0
// What a test does with memory that may be on a device: bytes go there and back through its runtime, and the host
// waits.
#pragma once

#include <chrono>
#include <cstring>
#include <span>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/device/device_runtime.h"

namespace lockstep::testing {

// Whether all of them are `value`. Without a loop that a sanitizer sees: for the tests of many megabytes.
template <typename T>
bool all_are(const std::vector<T>& values, T value) {
  return values.empty() ||
         (values[0] == value && std::memcmp(values.data(), values.data() + 1, (values.size() - 1) * sizeof(T)) == 0);
}

inline Deadline copy_deadline() { return Deadline::after(std::chrono::seconds(60)); }

// Behind what is in the stream.
inline void upload(StreamView stream, void* to, std::span<const std::byte> from) {
  DeviceRuntime& runtime = device_runtime(stream.device.kind);
  if (from.empty()) return;
  runtime.copy(to, from.data(), from.size(), stream);
  runtime.synchronize(stream, copy_deadline());
}
inline void download(StreamView stream, std::span<std::byte> to, const void* from) {
  DeviceRuntime& runtime = device_runtime(stream.device.kind);
  if (to.empty()) return;
  runtime.copy(to.data(), from, to.size(), stream);
  runtime.synchronize(stream, copy_deadline());
}

}  // namespace lockstep::testing
