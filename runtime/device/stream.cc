// SPDX-License-Identifier: Apache-2.0
#include "lockstep/device/stream.h"

#include "lockstep/device/device_runtime.h"

namespace lockstep {

Stream::Stream(DeviceId device, Priority priority)
    : runtime_(&device_runtime(device.kind)),
      owner_(runtime_->create_stream(device, priority)),
      view_{device, owner_.get()} {}

void Stream::synchronize(const Deadline& deadline) const { runtime_->synchronize(view_, deadline); }

Event::Event(DeviceId device, bool timed)
    : runtime_(&device_runtime(device.kind)), device_(device), owner_(runtime_->create_event(device, timed)) {}

void Event::record(StreamView stream) { runtime_->record(owner_.get(), stream); }
void Event::block(StreamView stream) const { runtime_->block(stream, owner_.get()); }
bool Event::reached() const { return runtime_->reached(owner_.get()); }
void Event::synchronize(const Deadline& deadline) const { runtime_->synchronize(owner_.get(), deadline); }
std::chrono::nanoseconds Event::elapsed_since(const Event& earlier) const {
  return runtime_->elapsed(earlier.owner_.get(), owner_.get());
}

}  // namespace lockstep
