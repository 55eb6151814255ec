// SPDX-License-Identifier: Apache-2.0
// A block of memory on a device, shared by the tensors that look at it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "lockstep/base/api.h"
#include "lockstep/device/device.h"

namespace lockstep {

// Never moves. Thread: any; the contents are the users' to order.
class LOCKSTEP_API Storage {
 public:
  // Uninitialised memory, 64-byte aligned. 0 bytes is fine. SystemError, with the size, if there is not so much.
  static std::shared_ptr<Storage> allocate(std::size_t bytes, DeviceId device = {});
  // Memory of somebody else's, who keeps it until the last user is gone; `owner`, if given, is kept alive with it.
  static std::shared_ptr<Storage> borrow(void* data, std::size_t bytes, DeviceId device = {},
                                         std::shared_ptr<void> owner = nullptr);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  DeviceId device() const { return device_; }

  // How often the contents were written by those who say so: see Tensor::version().
  std::uint64_t version() const { return version_.load(std::memory_order_relaxed); }
  void mark_written() { version_.fetch_add(1, std::memory_order_relaxed); }

 private:
  Storage(void* data, std::size_t bytes, DeviceId device, std::shared_ptr<void> owner, bool owned)
      : data_(static_cast<std::byte*>(data)), bytes_(bytes), device_(device), owner_(std::move(owner)), owned_(owned) {}

  std::byte* data_;
  std::size_t bytes_;
  DeviceId device_;
  std::shared_ptr<void> owner_;
  bool owned_;  // allocated here, so released here
  std::atomic<std::uint64_t> version_{0};
};

}  // namespace lockstep
