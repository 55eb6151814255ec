// SPDX-License-Identifier: Apache-2.0
// Tensor is a handle to typed, contiguous, row-major memory.
//
// Copies of a Tensor share the memory, the gradient and requires_grad, like a shared_ptr; clone() makes new memory. A
// view (reshape, rows) shares only the memory. f32 is the type of computation; i64 holds indices, u8 masks.
//
// Gradients: a tensor with requires_grad that no operation made is a leaf, a parameter. backward() (autograd/graph.h)
// leaves the leaf's gradient in grad(). A DistributedDataParallel puts gradients into an arena.
//
// Threads: handles to different memory are independent. Only one thread at a time may use a tensor.
// Failure: calls throw InvalidArgument with both shapes or dtypes.
#pragma once

#include <array>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/device/buffer_view.h"
#include "lockstep/device/device.h"
#include "lockstep/device/dtype.h"

namespace lockstep {

// Shape holds the extents of a tensor: a small value without allocation.

// The row-major extents of a tensor, outermost first. An extent may be 0: a batch without rows is legal everywhere. A
// shape without extents is a scalar of one element.
class LOCKSTEP_API Shape {
 public:
  static constexpr std::size_t kMaxDims = 6;

  Shape() = default;
  // Throws InvalidArgument if there are more than kMaxDims extents, an extent is negative, or the product overflows.
  Shape(std::initializer_list<std::int64_t> extents);  // NOLINT(google-explicit-constructor): {30, 5} is a shape
  explicit Shape(std::span<const std::int64_t> extents);

  std::size_t dims() const { return dims_; }
  // Returns the product of the extents; 1 for a scalar.
  std::int64_t count() const;
  // Returns the extent of a dimension; negative numbers count from the end. Throws InvalidArgument if the shape has no
  // such dimension.
  std::int64_t operator[](std::int64_t dim) const;
  // Returns the number of elements over all dimensions except the last dimension: the number of rows, if the tensor is
  // seen as a matrix. Returns 1 for a scalar.
  std::int64_t rows() const;
  // Returns the extent of the last dimension; 1 for a scalar.
  std::int64_t columns() const { return dims_ == 0 ? 1 : extents_[dims_ - 1]; }
  // Returns this shape with another last, or another first, extent. Throws InvalidArgument for a scalar, and as the
  // constructor does.
  Shape with_last(std::int64_t extent) const;
  Shape with_first(std::int64_t extent) const;
  std::span<const std::int64_t> extents() const& { return {extents_.data(), dims_}; }
  std::span<const std::int64_t> extents() const&& = delete;  // name the shape first: const Shape shape = ...

  friend bool operator==(const Shape& a, const Shape& b) = default;
  // Returns the shape as PyTorch prints a size: "[30, 5]".
  std::string str() const;

 private:
  std::array<std::int64_t, kMaxDims> extents_{};  // unused extents stay 0, so == may compare the whole array
  std::size_t dims_ = 0;
};

// Storage is a block of memory on a device, shared by the tensors over the block.

// A block of memory that never moves. Any thread may use a Storage; its users order their accesses.
class LOCKSTEP_API Storage {
 public:
  // Allocates uninitialised memory, 64-byte aligned. `bytes` may be 0. Throws SystemError, with the size, if memory
  // runs out.
  static std::shared_ptr<Storage> allocate(std::size_t bytes, DeviceId device = {});
  // Uses memory of the caller, who keeps the memory until the last user is destroyed; the Storage keeps `owner`, if
  // given, alive.
  static std::shared_ptr<Storage> borrow(void* data, std::size_t bytes, DeviceId device = {},
                                         std::shared_ptr<void> owner = nullptr);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  DeviceId device() const { return device_; }

  // Returns the number of counted writes to the contents: see Tensor::version().
  std::uint64_t version() const { return version_.load(std::memory_order_relaxed); }
  void mark_written() { version_.fetch_add(1, std::memory_order_relaxed); }

 private:
  Storage(void* data, std::size_t bytes, DeviceId device, std::shared_ptr<void> owner, bool owned)
      : data_(static_cast<std::byte*>(data)), bytes_(bytes), device_(device), owner_(std::move(owner)), owned_(owned) {}

  std::byte* data_;
  std::size_t bytes_;
  DeviceId device_;
  std::shared_ptr<void> owner_;
  bool owned_;  // whether allocate() made the memory, so the destructor releases it
  std::atomic<std::uint64_t> version_{0};
};

class LOCKSTEP_API Tensor {
 public:
  // Makes an undefined tensor, which has no memory and stands for "none".
  Tensor() = default;

  // Makes a tensor of uninitialised elements.
  static Tensor empty(const Shape& shape, DType dtype = DType::f32, DeviceId device = {});
  static Tensor zeros(const Shape& shape, DType dtype = DType::f32, DeviceId device = {});
  static Tensor ones(const Shape& shape, DeviceId device = {}) { return full(shape, 1.0f, device); }
  static Tensor full(const Shape& shape, float value, DeviceId device = {});
  // Makes a tensor from a copy of host values. Throws InvalidArgument if the number of values is not the shape's. A
  // list of int literals is float32, as in of({2}, {1, 0}); a list of std::int64_t, as of labels, is int64. indices()
  // makes int64 of both lists.
  static Tensor of(const Shape& shape, std::span<const float> values);
  static Tensor of(const Shape& shape, std::span<const std::int64_t> values);
  static Tensor of(const Shape& shape, std::initializer_list<float> values);
  template <std::same_as<std::int64_t> T>
  static Tensor of(const Shape& shape, std::initializer_list<T> values) {
    return indices(shape, values);
  }
  // Makes a tensor of indices, dtype i64.
  static Tensor indices(const Shape& shape, std::initializer_list<std::int64_t> values);
  // Makes a tensor over memory of the caller. The memory lives until the last handle is destroyed; the tensor keeps
  // `owner` alive.
  static Tensor borrow(const BufferView& memory, const Shape& shape, std::shared_ptr<void> owner = nullptr);

  bool defined() const { return impl_ != nullptr; }
  explicit operator bool() const { return defined(); }
  const Shape& shape() const&;
  Shape shape() const&& { return shape(); }  // a reference into a temporary tensor would dangle
  // Returns the extent of a dimension; negative numbers count from the end.
  std::int64_t size(std::int64_t dim) const { return shape()[dim]; }
  std::int64_t count() const { return shape().count(); }
  DType dtype() const;
  DeviceId device() const;
  // Returns a key for maps, which is equal for handles to the same tensor.
  const void* id() const { return impl_.get(); }

  // Returns the elements. If count() is 0 the pointer may be null and is not used. Throws InvalidArgument if T is
  // another dtype.
  //
  // The memory lives as long as a handle to the tensor, so a call on a temporary tensor does not compile: `for (float v
  // : (a + b).values<float>())` would destroy the sum before the loop reads the first value. Name the tensor first.
  template <typename T>
  T* data() const& {
    return static_cast<T*>(data_as(dtype_of<T>()));
  }
  template <typename T>
  std::span<T> values() const& {
    return {data<T>(), static_cast<std::size_t>(count())};
  }
  BufferView view() const&;
  template <typename T>
  T* data() const&& = delete;  // name the tensor first: const Tensor sum = a + b;
  template <typename T>
  std::span<T> values() const&& = delete;  // name the tensor first: const Tensor sum = a + b;
  BufferView view() const&& = delete;      // name the tensor first: const Tensor sum = a + b;
  // Returns a copy of the elements on the host, from any device.
  std::vector<float> to_vector() const;
  // Returns the only element of an f32 tensor. Throws InvalidArgument if the tensor has more elements or none.
  float item() const;

  // Returns a copy in new memory, without graph and gradient.
  Tensor clone() const;
  // Returns a tensor over the same memory, without graph and gradient.
  Tensor detach() const;
  // Returns another tensor over this memory, without graph. autograd/ops.h has the differentiable reshape().
  Tensor view_as(const Shape& shape) const;
  // Returns rows [begin, end) of dimension 0, without graph. The result shares the memory.
  Tensor view_rows(std::int64_t begin, std::int64_t end) const;
  // Returns whether another tensor may use this memory too.
  bool shares_memory() const;
  // Overwrites the contents with the contents of `source`, which has the same shape and dtype; the devices may differ.
  void copy_from(const Tensor& source) const;
  void fill(float value) const;
  void zero() const;
  // Returns the number of writes to this memory, through any tensor over it, by copy_from, fill, zero and an
  // optimizer's step. After a write through data(), values() or view() the program calls mark_written(), which counts
  // the write. DistributedDataParallel compares the number over the ranks.
  std::uint64_t version() const;
  void mark_written() const;
  // Returns this tensor if it is on the device already, otherwise a copy.
  Tensor to(DeviceId device) const;
  // Returns the tensor on the host. Waits for the tensor's device.
  Tensor cpu() const { return to({}); }
  // Moves the tensor itself, with all its handles and its gradient's memory. A graph that holds the tensor is
  // not updated.
  void move_to(DeviceId device) const;

  bool requires_grad() const;
  // Returns this tensor. Throws InvalidArgument if the tensor is not f32 or an operation made the tensor.
  const Tensor& set_requires_grad(bool on = true) const&;
  Tensor set_requires_grad(bool on = true) const&& { return set_requires_grad(on); }
  // Returns whether no operation made the tensor.
  bool is_leaf() const;
  // Returns the gradient; undefined if there is none. Throws InvalidArgument if each rank has only its shard of the
  // gradient: after a synchronised backward with DdpOptions::shard, until clear_grad(). optim::grad_norm and optimizers
  // read the shard.
  Tensor grad() const;
  bool has_grad() const;
  // Drops the gradient. The gradient's memory stays, and the next contribution overwrites the memory.
  void clear_grad() const;
  // PyTorch's spelling of backward does not compile here.
  void backward() const = delete;  // write ddp.backward(loss), or lockstep::backward(loss)

  // Returns the tensor's description for messages: "float32 [30, 5]", or "undefined".
  std::string str() const;

 private:
  friend class TensorInternals;
  struct LOCKSTEP_LOCAL Impl;
  explicit Tensor(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  Impl& checked() const;
  void* data_as(DType dtype) const;

  std::shared_ptr<Impl> impl_;
};

// expect_same_shape() and expect_dtype() throw InvalidArgument, which names the operation and the difference, if the
// shapes or dtypes differ.
LOCKSTEP_API void expect_same_shape(const char* operation, const Tensor& a, const Tensor& b);
LOCKSTEP_API void expect_dtype(const char* operation, const char* argument, const Tensor& tensor, DType dtype);

}  // namespace lockstep
