// SPDX-License-Identifier: Apache-2.0
// Streams between lockstep and torch.
#pragma once

#include <c10/core/Stream.h>

#include "lockstep/device/stream.h"

namespace lockstep::testing {

// A stream of ours as torch knows it, which numbers those that it did not make by their handle:
// c10::StreamGuard(torch_stream(stream)).
inline c10::Stream torch_stream(StreamView stream) {
  const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(stream.device.index));
  return c10::Stream(c10::Stream::UNSAFE, device, reinterpret_cast<c10::StreamId>(stream.handle));
}

}  // namespace lockstep::testing
