// SPDX-License-Identifier: Apache-2.0
// The argument of all calls from the process groups down: memory that somebody else owns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/device/device.h"
#include "lockstep/device/dtype.h"

namespace lockstep {

// `count` elements of `dtype`, contiguous, on `device`. The owner outlives every use; for a collective that is until
// its Work is done.
struct BufferView {
  void* data = nullptr;
  std::int64_t count = 0;
  DType dtype = DType::f32;
  DeviceId device = {};

  std::size_t bytes() const { return static_cast<std::size_t>(count) * size_of(dtype); }

  BufferView() = default;
  BufferView(void* address, std::int64_t elements, DType type, DeviceId where = {})
      : data(address), count(elements), dtype(type), device(where) {}
  template <typename T>
  BufferView(std::span<T> values)  // NOLINT(google-explicit-constructor): a span is a view already
      : data(values.data()), count(static_cast<std::int64_t>(values.size())), dtype(dtype_of<T>()) {}
};

}  // namespace lockstep
