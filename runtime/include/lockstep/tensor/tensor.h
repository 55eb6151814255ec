// SPDX-License-Identifier: Apache-2.0
// Tensor: a handle to typed, contiguous, row-major memory.
//
// Copies of a Tensor share the memory, the gradient and requires_grad, like a shared_ptr; clone() makes new memory. A
// view (reshape, rows) shares the memory only. f32 is the type of computation; i64 holds indices, u8 masks.
//
// Gradients: a tensor with requires_grad that no operation made is a leaf, a parameter. backward() (autograd/graph.h)
// leaves its gradient in grad(). Where that memory lies can be chosen: bind_grad() gives it a slice of somebody's
// arena, and backward writes straight into it.
//
// Threads: handles to different memory are independent. One tensor is used by one thread at a time.
// Failure: InvalidArgument with both shapes or dtypes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/device/buffer_view.h"
#include "lockstep/device/device.h"
#include "lockstep/device/dtype.h"
#include "lockstep/tensor/shape.h"
#include "lockstep/tensor/storage.h"

namespace lockstep {

// The operation that made a tensor, as far as this room knows it: autograd derives its nodes from it.
class LOCKSTEP_API GraphNode {
 public:
  virtual ~GraphNode() = default;
};

class LOCKSTEP_API Tensor {
 public:
  // Undefined: no memory, for "none".
  Tensor() = default;

  // Uninitialised.
  static Tensor empty(const Shape& shape, DType dtype = DType::f32, DeviceId device = {});
  static Tensor zeros(const Shape& shape, DType dtype = DType::f32, DeviceId device = {});
  static Tensor ones(const Shape& shape, DeviceId device = {}) { return full(shape, 1.0f, device); }
  static Tensor full(const Shape& shape, float value, DeviceId device = {});
  // Copies of host values. InvalidArgument if their number is not the shape's.
  static Tensor of(const Shape& shape, std::span<const float> values);
  static Tensor of(const Shape& shape, std::span<const std::int64_t> values);
  static Tensor of(const Shape& shape, std::initializer_list<float> values);
  // Indices: dtype i64.
  static Tensor indices(const Shape& shape, std::initializer_list<std::int64_t> values);
  // A tensor over memory of somebody else's, which lives until the last handle is gone (`owner` is kept with it).
  static Tensor borrow(const BufferView& memory, const Shape& shape, std::shared_ptr<void> owner = nullptr);

  bool defined() const { return impl_ != nullptr; }
  explicit operator bool() const { return defined(); }
  const Shape& shape() const;
  // Extent of a dimension, negative ones from the end.
  std::int64_t size(std::int64_t dim) const { return shape()[dim]; }
  std::int64_t count() const { return shape().count(); }
  DType dtype() const;
  DeviceId device() const;
  // Equal for handles to the same tensor, for maps.
  const void* id() const { return impl_.get(); }

  // The elements. Null or not, unused when count() is 0. InvalidArgument if T is another dtype.
  template <typename T>
  T* data() const {
    return static_cast<T*>(data_as(dtype_of<T>()));
  }
  template <typename T>
  std::span<T> values() const {
    return {data<T>(), static_cast<std::size_t>(count())};
  }
  BufferView view() const;
  // A copy on the host, whatever the device.
  std::vector<float> to_vector() const;
  // The only element of an f32 tensor. InvalidArgument if there are more or none.
  float item() const;

  // New memory, equal contents; no graph, no gradient.
  Tensor clone() const;
  // The same memory without graph and gradient.
  Tensor detach() const;
  // Other tensors over this memory. Without graph: the differentiable ones are in autograd/ops.h.
  Tensor view_as(const Shape& shape) const;
  // Rows [begin, end) of dimension 0.
  Tensor view_rows(std::int64_t begin, std::int64_t end) const;
  // True if another tensor may look at this memory too.
  bool shares_memory() const;
  // Overwrites the contents. Same shape and dtype; the devices may differ.
  void copy_from(const Tensor& source) const;
  void fill(float value) const;
  void zero() const;
  // How often this memory was written, through this tensor or another over it: by copy_from, fill, zero, and by an
  // optimizer's step. A write to data(), values() or view() counts where the writer says so, by mark_written().
  // DistributedDataParallel compares it over the ranks.
  std::uint64_t version() const;
  void mark_written() const;
  // This tensor if it is there already, else a copy.
  Tensor to(DeviceId device) const;
  // Moves the tensor itself, all handles and its gradient's memory; a graph that holds it is not updated.
  void move_to(DeviceId device) const;

  bool requires_grad() const;
  // Returns this tensor. InvalidArgument if it is not f32 or an operation made it.
  const Tensor& set_requires_grad(bool on = true) const;
  // True if no operation made it.
  bool is_leaf() const;
  // The gradient; undefined while there is none.
  Tensor grad() const;
  bool has_grad() const;
  // Uses `memory` (same count, f32, same device) for the gradient from now on: what lies there counts as the gradient.
  void bind_grad(const Tensor& memory) const;
  // The same over a plain address, for DDP: a slice of the Reducer's arena. The caller keeps it alive until the next
  // bind_grad or unbind_grad.
  void bind_grad(float* memory) const;
  void unbind_grad() const;
  // For DDP, while it sums this leaf's gradient over ranks: lockstep::backward(loss) calls `backward`, which outlives
  // the hold.
  using LossBackward = std::function<void(const Tensor& loss)>;
  void hold_grad(const LossBackward& backward) const;
  void release_grad(const LossBackward& backward) const;
  // Those that hold it, from the first.
  const std::vector<const LossBackward*>& grad_holders() const;
  // There is no gradient from now on; memory stays. The next contribution overwrites it.
  void clear_grad() const;
  // For whoever computes a gradient: the memory to write to (made if there is none), with the shape of this tensor.
  // The gradient counts as there afterwards.
  Tensor grad_for_writing() const;
  // PyTorch's spelling.
  void backward() const = delete;  // write ddp.backward(loss), or lockstep::backward(loss)

  const std::shared_ptr<GraphNode>& node() const;
  void set_node(std::shared_ptr<GraphNode> node) const;

  // "float32 [30, 5]", for messages; "undefined".
  std::string str() const;

 private:
  struct LOCKSTEP_LOCAL Impl;
  explicit Tensor(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  Impl& checked() const;
  void* data_as(DType dtype) const;

  std::shared_ptr<Impl> impl_;
};

// InvalidArgument naming the operation and what differs, unless they are as wanted.
LOCKSTEP_API void expect_same_shape(const char* operation, const Tensor& a, const Tensor& b);
LOCKSTEP_API void expect_dtype(const char* operation, const char* argument, const Tensor& tensor, DType dtype);

}  // namespace lockstep
