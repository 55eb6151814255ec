// SPDX-License-Identifier: Apache-2.0
// Tensor is a handle to typed, contiguous, row-major memory.
//
// Copies of a Tensor share the memory, the gradient and requires_grad, like a shared_ptr; clone() makes new memory. A
// view of a tensor, such as the result of view_as() or view_rows(), shares only the tensor's memory. Tensors of dtype
// f32 are for computation, i64 tensors hold indices, and u8 tensors hold masks.
//
// Gradients: a leaf (a parameter) is a tensor with requires_grad that no operation made. After backward()
//   (autograd/graph.h) a leaf's gradient is in grad(). A DistributedDataParallel places the gradients of its parameters
//   in the Reducer's arena, which is the memory that all-reduces use.
//
// Threads: handles to different memory are independent. Only one thread at a time may use a tensor.
// Failure: a Tensor's functions throw InvalidArgument, whose message shows both shapes or both dtypes.
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

// Shape holds the extents of a tensor, as a small value that allocates no memory.

// Shape holds the row-major extents of a tensor, outermost first. An extent may be 0, because a batch without rows is
// legal everywhere. A shape without extents is the shape of a scalar, which has one element.
class LOCKSTEP_API Shape {
 public:
  static constexpr std::size_t kMaxDims = 6;

  Shape() = default;
  // Throws InvalidArgument if there are more than kMaxDims extents, an extent is negative, or the product overflows.
  Shape(std::initializer_list<std::int64_t> extents);  // NOLINT(google-explicit-constructor): {30, 5} is a shape
  explicit Shape(std::span<const std::int64_t> extents);

  std::size_t dims() const { return dims_; }
  // Returns the product of the extents, which is 1 for a scalar.
  std::int64_t count() const;
  // Returns the extent of dimension `dim`; a negative `dim` counts from the end. Throws InvalidArgument if the shape
  // has no dimension `dim`.
  std::int64_t operator[](std::int64_t dim) const;
  // Returns the number of rows of a tensor that is seen as a matrix: the product of all extents except the last extent.
  // Returns 1 for a scalar.
  std::int64_t rows() const;
  // Returns the extent of the last dimension, or 1 for a scalar.
  std::int64_t columns() const { return dims_ == 0 ? 1 : extents_[dims_ - 1]; }
  // with_last() returns this shape with `extent` in place of its last extent, and with_first() returns this shape with
  // `extent` in place of its first extent. Throws InvalidArgument for a scalar, and for an extent that the
  // constructor refuses.
  Shape with_last(std::int64_t extent) const;
  Shape with_first(std::int64_t extent) const;
  std::span<const std::int64_t> extents() const& { return {extents_.data(), dims_}; }
  std::span<const std::int64_t> extents() const&& = delete;  // name the shape first: const Shape shape = ...

  friend bool operator==(const Shape& a, const Shape& b) = default;
  // Returns the shape as PyTorch prints a size, such as "[30, 5]".
  std::string str() const;

 private:
  std::array<std::int64_t, kMaxDims> extents_{};  // unused extents stay 0, so == may compare the whole array
  std::size_t dims_ = 0;
};

// Storage is a block of memory on a device; several tensors may share a Storage.

// Storage is a block of memory that never moves. Any thread may use a Storage, but threads that share a Storage must
// synchronise their accesses.
class LOCKSTEP_API Storage {
 public:
  // Allocates uninitialised memory, 64-byte aligned. `bytes` may be 0. Throws SystemError, which names the size, if
  // memory runs out.
  static std::shared_ptr<Storage> allocate(std::size_t bytes, DeviceId device = {});
  // Makes a Storage from memory that the caller owns. The caller's memory must stay valid until the last shared_ptr to
  // the Storage is destroyed. The Storage keeps `owner`, if given, alive.
  static std::shared_ptr<Storage> borrow(void* data, std::size_t bytes, DeviceId device = {},
                                         std::shared_ptr<void> owner = nullptr);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  DeviceId device() const { return device_; }

  // Returns how often mark_written() was called, which counts the writes to the Storage's contents;
  // see Tensor::version().
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
  // Makes an undefined tensor, which has no memory and represents a missing tensor.
  Tensor() = default;

  // Makes a tensor of uninitialised elements.
  static Tensor empty(const Shape& shape, DType dtype = DType::f32, DeviceId device = {});
  static Tensor zeros(const Shape& shape, DType dtype = DType::f32, DeviceId device = {});
  static Tensor ones(const Shape& shape, DeviceId device = {}) { return full(shape, 1.0f, device); }
  static Tensor full(const Shape& shape, float value, DeviceId device = {});
  // Makes a tensor from a copy of `values`, which are on the host. Throws InvalidArgument if the number of values is
  // not `shape.count()`. A list of int literals, as in of({2}, {1, 0}), makes a float32 tensor. A list of std::int64_t
  // values, such as labels, makes an int64 tensor. Tensor::indices() makes an int64 tensor from int literals and from
  // std::int64_t values.
  static Tensor of(const Shape& shape, std::span<const float> values);
  static Tensor of(const Shape& shape, std::span<const std::int64_t> values);
  static Tensor of(const Shape& shape, std::initializer_list<float> values);
  template <std::same_as<std::int64_t> T>
  static Tensor of(const Shape& shape, std::initializer_list<T> values) {
    return indices(shape, values);
  }
  // Makes a tensor of indices, dtype i64.
  static Tensor indices(const Shape& shape, std::initializer_list<std::int64_t> values);
  // Makes a tensor from memory that the caller owns. The caller's memory must stay valid until the last handle to the
  // tensor is destroyed. The tensor keeps `owner` alive.
  static Tensor borrow(const BufferView& memory, const Shape& shape, std::shared_ptr<void> owner = nullptr);

  bool defined() const { return impl_ != nullptr; }
  explicit operator bool() const { return defined(); }
  const Shape& shape() const&;
  Shape shape() const&& { return shape(); }  // a reference into a temporary tensor would dangle
  // Returns the extent of dimension `dim`; a negative `dim` counts from the end.
  std::int64_t size(std::int64_t dim) const { return shape()[dim]; }
  std::int64_t count() const { return shape().count(); }
  DType dtype() const;
  DeviceId device() const;
  // Returns a key for maps; all handles to one tensor return equal keys.
  const void* id() const { return impl_.get(); }

  // Returns the elements. If count() is 0, the returned pointer may be null and must not be used. Throws
  // InvalidArgument if T is not the type of the tensor's dtype.
  //
  // A call on a temporary tensor does not compile, because the memory lives only as long as a handle to the tensor. For
  // example, `for (float v : (a + b).values<float>())` would destroy the sum before the loop reads the first value.
  // Name the tensor first.
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
  // Returns a copy of the tensor's elements on the host; the tensor may be on any device.
  std::vector<float> to_vector() const;
  // Returns the only element of an f32 tensor. Throws InvalidArgument if the tensor does not have exactly one element.
  float item() const;

  // Returns a copy of the tensor in new memory; the copy has no autograd graph and no gradient.
  Tensor clone() const;
  // Returns a tensor that shares this tensor's memory, but has no autograd graph and no gradient.
  Tensor detach() const;
  // Returns a tensor of shape `shape` that shares this tensor's memory, but has no autograd graph; autograd/ops.h has
  // the differentiable reshape().
  Tensor view_as(const Shape& shape) const;
  // Returns a tensor of the rows [begin, end) of dimension 0, without an autograd graph. The result shares the memory.
  Tensor view_rows(std::int64_t begin, std::int64_t end) const;
  // Returns whether another tensor may also use this tensor's memory.
  bool shares_memory() const;
  // Overwrites this tensor's contents with the contents of `source`, which must have an equal shape and dtype; the
  // devices may differ.
  void copy_from(const Tensor& source) const;
  void fill(float value) const;
  void zero() const;
  // Returns the number of writes to this tensor's memory by copy_from(), fill(), zero() and an optimizer's step,
  // through any tensor that shares this memory. After a write through data(), values() or view() the program must call
  // mark_written(), which counts the write. DistributedDataParallel compares the parameters' version() numbers over
  // the ranks.
  std::uint64_t version() const;
  void mark_written() const;
  // Returns this tensor if it is on `device` already, and a copy on `device` if it is not.
  Tensor to(DeviceId device) const;
  // Returns the tensor on the host. Waits for the tensor's device.
  Tensor cpu() const { return to({}); }
  // Moves this tensor to `device` and drops its gradient; all handles to the tensor see the new memory. An autograd
  // graph that already uses the tensor is not updated.
  void move_to(DeviceId device) const;

  bool requires_grad() const;
  // Returns this tensor. Throws InvalidArgument if the tensor is not f32, or if an operation made the tensor.
  const Tensor& set_requires_grad(bool on = true) const&;
  Tensor set_requires_grad(bool on = true) const&& { return set_requires_grad(on); }
  // Returns whether no operation made the tensor.
  bool is_leaf() const;
  // Returns the gradient, or an undefined tensor if there is no gradient. With DdpOptions::shard, grad() throws
  // InvalidArgument after a synchronised backward until clear_grad() is called, because each rank has only its shard of
  // the gradient. Only optim::grad_norm() and the optimizers read a shard of a gradient.
  Tensor grad() const;
  bool has_grad() const;
  // Drops the gradient. The gradient's memory stays allocated, and the next gradient is written into this memory.
  void clear_grad() const;
  // A call of loss.backward(), as in PyTorch, does not compile.
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

// expect_same_shape() and expect_dtype() throw InvalidArgument if the shapes or dtypes differ. The exception's message
// names the operation and the difference.
LOCKSTEP_API void expect_same_shape(const char* operation, const Tensor& a, const Tensor& b);
LOCKSTEP_API void expect_dtype(const char* operation, const char* argument, const Tensor& tensor, DType dtype);

}  // namespace lockstep
