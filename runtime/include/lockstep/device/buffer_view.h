// SPDX-License-Identifier: Apache-2.0
// Defines BufferView and ConstBufferView, the views of writable and of read-only memory that collectives and devices
// take as arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "lockstep/device/device.h"
#include "lockstep/device/dtype.h"

namespace lockstep {

// BufferView is a view of `count` contiguous elements of `dtype` on `device`. The viewed memory must outlive every use
// of the view; a collective uses the view until its Work is done.
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
  requires(!std::is_const_v<T>)
      BufferView(std::span<T> values)  // NOLINT(google-explicit-constructor): a span is a view already
      : data(values.data()), count(static_cast<std::int64_t>(values.size())), dtype(dtype_of<T>()) {}
};

// ConstBufferView is a view of memory that is only read.
struct ConstBufferView {
  const void* data = nullptr;
  std::int64_t count = 0;
  DType dtype = DType::f32;
  DeviceId device = {};

  std::size_t bytes() const { return static_cast<std::size_t>(count) * size_of(dtype); }

  ConstBufferView() = default;
  ConstBufferView(const void* address, std::int64_t elements, DType type, DeviceId where = {})
      : data(address), count(elements), dtype(type), device(where) {}
  ConstBufferView(const BufferView& view)  // NOLINT(google-explicit-constructor): writable memory is also readable
      : ConstBufferView(view.data, view.count, view.dtype, view.device) {}
  template <typename T>
  ConstBufferView(std::span<T> values)  // NOLINT(google-explicit-constructor): a span is a view already
      : ConstBufferView(values.data(), static_cast<std::int64_t>(values.size()), dtype_of<std::remove_const_t<T>>()) {}
};

}  // namespace lockstep
