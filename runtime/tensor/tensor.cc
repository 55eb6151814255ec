// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/tensor.h"

#include <fmt/format.h>

#include <cstring>
#include <deque>
#include <map>

#include "lockstep/base/error.h"
#include "lockstep/device/device_runtime.h"
#include "runtime/base/logging.h"
#include "runtime/base/mutex.h"
#include "runtime/tensor/findings.h"
#include "runtime/tensor/sharded_update.h"
#include "runtime/tensor/tensor_internals.h"

namespace lockstep {

struct Tensor::Impl {
  Shape shape;
  DType dtype = DType::f32;
  std::shared_ptr<Storage> storage;
  std::size_t offset = 0;  // bytes into the storage

  bool requires_grad = false;
  std::shared_ptr<GraphNode> node;
  Tensor gradient;            // memory for it, once there is some
  bool has_gradient = false;  // whether that memory holds one
  std::vector<const TensorInternals::LossBackward*> gradient_holders;
  ShardedUpdate* sharded_update = nullptr;

  std::byte* data() const { return storage->data() == nullptr ? nullptr : storage->data() + offset; }
  std::size_t bytes() const { return static_cast<std::size_t>(shape.count()) * size_of(dtype); }
};

namespace {

// For a device to come to the end of its stream: what is longer hangs.
constexpr std::chrono::minutes kDeviceWait{10};

template <typename T>
Tensor from_host(const Shape& shape, std::span<const T> values) {
  if (static_cast<std::int64_t>(values.size()) != shape.count()) {
    throw InvalidArgument(
        fmt::format("Tensor::of: a tensor of shape {} needs {} values, but {} were given; give as many values as the "
                    "shape has elements",
                    shape.str(), shape.count(), values.size()));
  }
  Tensor result = Tensor::empty(shape, dtype_of<T>());
  std::copy(values.begin(), values.end(), result.data<T>());
  return result;
}

// In the order of the device's stream. From the host the bytes are taken at once, and wait in pinned memory; to the
// host they have come when this returns, with what the device found wrong until then.
void copy_bytes(void* target, DeviceId to, const void* source, DeviceId from, std::size_t bytes) {
  if (bytes == 0) return;
  if (to.kind == DeviceKind::cpu && from.kind == DeviceKind::cpu) {
    std::memmove(target, source, bytes);
    return;
  }
  const DeviceId device = to.kind == DeviceKind::cpu ? from : to;
  DeviceRuntime& runtime = device_runtime(device.kind);
  Kernels& k = kernels(device);
  if (to == from) {
    runtime.copy(target, source, bytes, k.stream());
    return;
  }
  if (to.kind != DeviceKind::cpu && from.kind != DeviceKind::cpu) {
    throw InvalidArgument(fmt::format(
        "can't copy a tensor from {} to {}: a process computes on one device; copy the tensor to the host first",
        from.str(), to.str()));
  }
  const std::shared_ptr<void> staged = runtime.allocate_pinned(bytes, device);
  if (from.kind == DeviceKind::cpu) {
    std::memcpy(staged.get(), source, bytes);
    runtime.copy(target, staged.get(), bytes, k.stream());
    return;
  }
  runtime.copy(staged.get(), source, bytes, k.stream());
  runtime.synchronize(k.stream(), Deadline::after(kDeviceWait));
  throw_findings(k);
  std::memcpy(target, staged.get(), bytes);
}

// Memory of the copy stream's order that nobody has any more, and that stream() may still be at. It goes back once that
// is known to be over: were the copy stream to wait for it, so would the next batch, for all of the step before.
//
// Threads: any.
class UsedMemory {
 public:
  // Never destroyed: tensors may go after main() has ended.
  static UsedMemory& of(DeviceId device) {
    static Mutex& mutex = *new Mutex;
    static auto& all = *new std::map<DeviceId, UsedMemory>;
    MutexLock lock(mutex);
    return all[device];
  }

  // `used`: its mark is behind the last use.
  void put(std::shared_ptr<void> memory, std::size_t bytes, Event used) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    held_.push_back({std::move(memory), bytes, std::move(used)});
    bytes_ += bytes;
  }
  // Gives back what is over, and in the order of the copy stream what is too much.
  void release(StreamView copy_stream) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (!held_.empty()) {
      const Held& first = held_.front();
      if (!first.used.reached()) {
        if (bytes_ <= kMostBytes) return;
        first.used.block(copy_stream);
      }
      bytes_ -= first.bytes;
      held_.pop_front();
    }
  }

 private:
  static constexpr std::size_t kMostBytes = std::size_t{256} << 20;
  struct Held {
    std::shared_ptr<void> memory;
    std::size_t bytes;
    Event used;
  };
  Mutex mutex_;
  std::deque<Held> held_ GUARDED_BY(mutex_);
  std::size_t bytes_ GUARDED_BY(mutex_) = 0;
};

// What Tensor::to() has copied from the host: in the copy stream, for use in the other one.
class Uploaded {
 public:
  Uploaded(DeviceRuntime& runtime, DeviceId device, std::size_t bytes)
      : kernels_(kernels(device)), used_(device), bytes_(bytes) {
    UsedMemory::of(device).release(kernels_.copy_stream());
    memory_ = runtime.allocate(bytes, kernels_.copy_stream());
  }
  ~Uploaded() {
    try {
      used_.record(kernels_.stream());
      UsedMemory::of(used_.device()).put(memory_, bytes_, used_);
    } catch (const std::exception& error) {
      // The device has failed. The next owner of this memory could not be kept apart from its users.
      new std::shared_ptr<void>(std::move(memory_));
      log_error(
          "lockstep keeps the memory of a destroyed tensor, since the tensor's device has failed: {}; end this process "
          "and start it again",
          error.what());
    }
  }
  Uploaded(const Uploaded&) = delete;
  Uploaded& operator=(const Uploaded&) = delete;

  // Takes the bytes at once; what is put into stream() from now on comes behind them.
  void fill_from(DeviceRuntime& runtime, const void* host, std::size_t bytes) {
    const std::shared_ptr<void> staged = runtime.allocate_pinned(bytes, kernels_.stream().device);
    std::memcpy(staged.get(), host, bytes);
    runtime.copy(memory_.get(), staged.get(), bytes, kernels_.copy_stream());
    used_.record(kernels_.copy_stream());
    used_.block(kernels_.stream());
  }
  void* data() const { return memory_.get(); }

 private:
  Kernels& kernels_;
  Event used_;
  std::size_t bytes_;
  std::shared_ptr<void> memory_;
};

}  // namespace

Tensor Tensor::empty(const Shape& shape, DType dtype, DeviceId device) {
  auto impl = std::make_shared<Impl>();
  impl->shape = shape;
  impl->dtype = dtype;
  impl->storage = Storage::allocate(impl->bytes(), device);
  return Tensor(std::move(impl));
}

Tensor Tensor::zeros(const Shape& shape, DType dtype, DeviceId device) {
  Tensor result = empty(shape, dtype, device);
  result.zero();
  return result;
}

Tensor Tensor::full(const Shape& shape, float value, DeviceId device) {
  Tensor result = empty(shape, DType::f32, device);
  result.fill(value);
  return result;
}

Tensor Tensor::of(const Shape& shape, std::span<const float> values) { return from_host(shape, values); }
Tensor Tensor::of(const Shape& shape, std::span<const std::int64_t> values) { return from_host(shape, values); }
Tensor Tensor::of(const Shape& shape, std::initializer_list<float> values) {
  return from_host(shape, std::span<const float>(values.begin(), values.size()));
}
Tensor Tensor::indices(const Shape& shape, std::initializer_list<std::int64_t> values) {
  return from_host(shape, std::span<const std::int64_t>(values.begin(), values.size()));
}

Tensor Tensor::borrow(const BufferView& memory, const Shape& shape, std::shared_ptr<void> owner) {
  if (memory.count != shape.count()) {
    throw InvalidArgument(
        fmt::format("Tensor::borrow: a tensor of shape {} needs {} elements, but the memory has {}; give memory of as "
                    "many elements",
                    shape.str(), shape.count(), memory.count));
  }
  auto impl = std::make_shared<Impl>();
  impl->shape = shape;
  impl->dtype = memory.dtype;
  impl->storage = Storage::borrow(memory.data, memory.bytes(), memory.device, std::move(owner));
  return Tensor(std::move(impl));
}

Tensor::Impl& Tensor::checked() const {
  if (!impl_)
    throw InvalidArgument(
        "an undefined tensor was used: the tensor was default-constructed and never assigned; assign a value to the "
        "tensor first");
  return *impl_;
}

const Shape& Tensor::shape() const& { return checked().shape; }
DType Tensor::dtype() const { return checked().dtype; }
DeviceId Tensor::device() const { return checked().storage->device(); }

void* Tensor::data_as(DType dtype) const {
  const Impl& impl = checked();
  if (impl.dtype != dtype) {
    throw InvalidArgument(fmt::format(
        "the elements of a tensor {} were asked for as {}; ask for the tensor's own dtype", str(), name_of(dtype)));
  }
  return impl.data();
}

BufferView Tensor::view() const& {
  const Impl& impl = checked();
  return {impl.data(), impl.shape.count(), impl.dtype, impl.storage->device()};
}

std::vector<float> Tensor::to_vector() const {
  expect_dtype("to_vector", "tensor", *this, DType::f32);
  std::vector<float> result(static_cast<std::size_t>(count()));
  copy_bytes(result.data(), DeviceId{}, checked().data(), device(), checked().bytes());
  return result;
}

float Tensor::item() const {
  if (count() != 1)
    throw InvalidArgument(fmt::format(
        "item() needs exactly one element, but the tensor is {}; take mean() or sum() first, or a row of one element",
        str()));
  return to_vector()[0];
}

Tensor Tensor::clone() const {
  Tensor result = empty(shape(), dtype(), device());
  result.copy_from(*this);
  return result;
}

Tensor Tensor::detach() const { return view_as(shape()); }

Tensor Tensor::view_as(const Shape& shape) const {
  const Impl& impl = checked();
  if (shape.count() != impl.shape.count()) {
    throw InvalidArgument(fmt::format(
        "a tensor of shape {} ({} elements) can't be viewed as {} ({} elements); give a shape with as many elements",
        impl.shape.str(), impl.shape.count(), shape.str(), shape.count()));
  }
  auto view = std::make_shared<Impl>();
  view->shape = shape;
  view->dtype = impl.dtype;
  view->storage = impl.storage;
  view->offset = impl.offset;
  return Tensor(std::move(view));
}

Tensor Tensor::view_rows(std::int64_t begin, std::int64_t end) const {
  const Impl& impl = checked();
  if (impl.shape.dims() == 0 || begin < 0 || end < begin || end > impl.shape[0]) {
    throw InvalidArgument(
        fmt::format("rows [{}, {}) are not rows of a tensor of shape {}; give 0 <= begin <= end, and end at most the "
                    "number of rows",
                    begin, end, impl.shape.str()));
  }
  auto view = std::make_shared<Impl>();
  view->shape = impl.shape.with_first(end - begin);
  view->dtype = impl.dtype;
  view->storage = impl.storage;
  const std::int64_t row = impl.shape.with_first(1).count();
  view->offset = impl.offset + static_cast<std::size_t>(begin * row) * size_of(impl.dtype);
  return Tensor(std::move(view));
}

bool Tensor::shares_memory() const {
  const Impl& impl = checked();
  return impl_.use_count() > 1 || impl.storage.use_count() > 1;
}

void Tensor::copy_from(const Tensor& source) const {
  expect_same_shape("copy_from", *this, source);
  expect_dtype("copy_from", "source", source, dtype());
  copy_bytes(checked().data(), device(), source.checked().data(), source.device(), checked().bytes());
  mark_written();
}

void Tensor::fill(float value) const {
  expect_dtype("fill", "tensor", *this, DType::f32);
  if (count() > 0) kernels(device()).fill(data<float>(), value, count());
  mark_written();
}

void Tensor::zero() const {
  const Impl& impl = checked();
  if (impl.bytes() == 0) return mark_written();
  if (device().kind == DeviceKind::cpu) {
    std::memset(impl.data(), 0, impl.bytes());
  } else {
    device_runtime(device().kind).zero(impl.data(), impl.bytes(), kernels(device()).stream());
  }
  mark_written();
}

std::uint64_t Tensor::version() const { return checked().storage->version(); }
void Tensor::mark_written() const { checked().storage->mark_written(); }

Tensor Tensor::to(DeviceId target) const {
  if (target == device()) return *this;
  const std::size_t bytes = checked().bytes();
  if (device().kind == DeviceKind::cpu && bytes > 0) {
    DeviceRuntime& runtime = device_runtime(target.kind);
    const auto uploaded = std::make_shared<Uploaded>(runtime, target, bytes);
    uploaded->fill_from(runtime, checked().data(), bytes);
    return borrow(BufferView(uploaded->data(), count(), dtype(), target), shape(), uploaded);
  }
  Tensor result = empty(shape(), dtype(), target);
  result.copy_from(*this);
  return result;
}

void Tensor::move_to(DeviceId target) const {
  Impl& impl = checked();
  if (target == device()) return;
  if (impl.node)
    throw InvalidArgument(
        "move_to: an operation made this tensor, so it can't move; move the operation's inputs before the operation");
  const Tensor moved = to(target);
  impl.storage = moved.impl_->storage;
  impl.offset = 0;
  impl.gradient = {};
  impl.has_gradient = false;
}

bool Tensor::requires_grad() const { return impl_ && (impl_->requires_grad || impl_->node); }

const Tensor& Tensor::set_requires_grad(bool on) const& {
  Impl& impl = checked();
  if (impl.dtype != DType::f32) {
    throw InvalidArgument(fmt::format(
        "set_requires_grad: the tensor is {}, and only float32 has gradients; make it of float values", str()));
  }
  if (impl.node)
    throw InvalidArgument(
        "set_requires_grad: an operation made this tensor, so whether it has a gradient follows from the operation's "
        "inputs; call set_requires_grad on these inputs, or take detach()");
  impl.requires_grad = on;
  return *this;
}

bool Tensor::is_leaf() const { return !checked().node; }
bool Tensor::has_grad() const { return impl_ && impl_->has_gradient; }

Tensor Tensor::grad() const {
  if (!has_grad()) return {};
  if (const ShardedUpdate* update = impl_->sharded_update;
      update != nullptr && update->holds() != ShardedUpdate::Holds::gradients) {
    throw InvalidArgument(
        fmt::format("grad() of a parameter {}: with Shard::optimizer each rank has only a shard of the sum; read the "
                    "norm with optim::grad_norm, or train without DdpOptions::shard",
                    str()));
  }
  return impl_->gradient;
}

void Tensor::clear_grad() const { checked().has_gradient = false; }

std::string Tensor::str() const {
  return impl_ ? fmt::format("{} {}", name_of(impl_->dtype), impl_->shape.str()) : "undefined";
}

void TensorInternals::bind_grad(const Tensor& memory) const {
  Tensor::Impl& impl = tensor_.checked();
  expect_dtype("bind_grad", "memory", memory, DType::f32);
  if (memory.count() != tensor_.count() || memory.device() != tensor_.device()) {
    throw InvalidArgument(
        fmt::format("bind_grad: the gradient of a tensor {} on {} can't lie in memory {} on {}; give float32 memory of "
                    "as many elements on the tensor's device",
                    tensor_.str(), tensor_.device().str(), memory.str(), memory.device().str()));
  }
  impl.gradient = memory.view_as(impl.shape);
  impl.has_gradient = true;
}

void TensorInternals::bind_grad(float* memory) const {
  bind_grad(Tensor::borrow(BufferView(memory, tensor_.count(), DType::f32, tensor_.device()), tensor_.shape()));
}

void TensorInternals::unbind_grad() const {
  Tensor::Impl& impl = tensor_.checked();
  impl.gradient = {};
  impl.has_gradient = false;
}

Tensor TensorInternals::grad_for_writing() const {
  Tensor::Impl& impl = tensor_.checked();
  if (!impl.gradient) impl.gradient = Tensor::empty(impl.shape, DType::f32, tensor_.device());
  impl.has_gradient = true;
  return impl.gradient;
}

void TensorInternals::hold_grad(const LossBackward& backward) const {
  tensor_.checked().gradient_holders.push_back(&backward);
}
void TensorInternals::release_grad(const LossBackward& backward) const {
  std::erase(tensor_.checked().gradient_holders, &backward);
}
const std::vector<const TensorInternals::LossBackward*>& TensorInternals::grad_holders() const {
  return tensor_.checked().gradient_holders;
}

void TensorInternals::set_sharded_update(ShardedUpdate* update) const { tensor_.checked().sharded_update = update; }
ShardedUpdate* TensorInternals::sharded_update() const { return tensor_.checked().sharded_update; }

const std::shared_ptr<GraphNode>& TensorInternals::node() const { return tensor_.checked().node; }
void TensorInternals::set_node(std::shared_ptr<GraphNode> node) const { tensor_.checked().node = std::move(node); }

void expect_same_shape(const char* operation, const Tensor& a, const Tensor& b) {
  if (a.shape() == b.shape()) return;
  throw InvalidArgument(fmt::format("{}: shapes {} and {} differ, but must be equal; give tensors of one shape",
                                    operation, a.shape().str(), b.shape().str()));
}

void expect_dtype(const char* operation, const char* argument, const Tensor& tensor, DType dtype) {
  if (!tensor) {
    throw InvalidArgument(
        fmt::format("{}: {} is undefined: it was default-constructed and never assigned; give a tensor (a dataset "
                    "without targets gives an undefined y)",
                    operation, argument));
  }
  if (tensor.dtype() == dtype) return;
  throw InvalidArgument(fmt::format("{}: {} is {}, and must be {}; give a tensor of this dtype{}", operation, argument,
                                    tensor.str(), name_of(dtype),
                                    dtype == DType::i64 ? ", made by Tensor::indices or of std::int64_t values" : ""));
}

}  // namespace lockstep
