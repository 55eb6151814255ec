// SPDX-License-Identifier: Apache-2.0
// CUDA tensors for a LibTorch that has none: over the fake CUDA runtime, whose checks they bring to torch's side.
//
// A program that links it gets, before main: torch's memory of the device, its streams, events and current stream, as
// LibTorch for GPUs has them, and one kernel for every operator, which puts the CPU's into torch's current stream with
// what it reads and writes. Autograd's own threads and its order between streams are LibTorch's. So a use of memory
// that neither a stream nor an event orders ends the process, whoever of the two put it in.
//
// An operator returns when it has run, since its result's shape is not known before. The fake does not count that as
// a wait: two operators that nothing orders are found all the same, and host_synchronisations() stays true.
//
// The CPU's kernels would also compute what CUDA's refuse: `kLacking` lists dtypes, and tensors that an operator takes
// must be on one device.
//
// Written for LibTorch 2.15, of which it takes libtorch_cpu.so alone: a build for GPUs keeps the places that are taken
// here for libtorch_cuda.so. No view but as_strided, view and what torch makes of them.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <cuda_runtime_api.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <future>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "lockstep/device/device_runtime.h"
#include "tests/fakes/cudart/fake_cuda.h"
#include "tests/libtorch/device/stream_of_torch.h"

namespace lockstep::testing {
namespace {

constexpr int kDevices = 4;
thread_local at::DeviceIndex current_device_index = 0;
thread_local std::array<void*, kDevices> current_streams{};

DeviceRuntime& cuda() { return device_runtime(DeviceKind::cuda); }
StreamView view_of(const c10::Stream& stream) {
  return {{DeviceKind::cuda, stream.device_index()}, reinterpret_cast<void*>(stream.id())};
}
StreamView current_stream_of(int device) {
  return {{DeviceKind::cuda, device}, current_streams.at(static_cast<std::size_t>(device))};
}

// Memory that other streams used as well, until they are through.
class ParkedMemory {
 public:
  void add(std::shared_ptr<void> memory, std::vector<Event> users) {
    const std::lock_guard lock(mutex_);
    parked_.push_back({std::move(memory), std::move(users)});
  }
  void release() {
    const std::lock_guard lock(mutex_);
    std::erase_if(parked_, [](const Parked& one) {
      return std::all_of(one.users.begin(), one.users.end(), [](const Event& user) { return user.reached(); });
    });
  }

 private:
  struct Parked {
    std::shared_ptr<void> memory;
    std::vector<Event> users;
  };
  std::mutex mutex_;
  std::vector<Parked> parked_;
};
ParkedMemory& parked_memory() {
  static auto* const parked = new ParkedMemory;
  return *parked;
}

// An allocation of torch's, and what record_stream() said of it.
class Owner {
 public:
  explicit Owner(std::shared_ptr<void> memory) : memory_(std::move(memory)) {}
  ~Owner() {
    if (streams_.empty()) return;
    std::vector<Event> users;
    for (const StreamView stream : streams_) users.emplace_back(stream.device).record(stream);
    parked_memory().add(std::move(memory_), std::move(users));
  }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;
  void* data() const { return memory_.get(); }
  void used_by(StreamView stream) {
    const std::lock_guard lock(mutex_);
    streams_.push_back(stream);
  }

 private:
  std::shared_ptr<void> memory_;
  std::mutex mutex_;
  std::vector<StreamView> streams_;
};
void free_owner(void* owner) { delete static_cast<Owner*>(owner); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  at::DeviceType type() const override { return at::kCUDA; }
  at::Device exchangeDevice(at::Device device) const override {
    const at::Device before = getDevice();
    setDevice(device);
    return before;
  }
  at::Device getDevice() const override { return {at::kCUDA, current_device_index}; }
  void setDevice(at::Device device) const override { uncheckedSetDevice(device); }
  void uncheckedSetDevice(at::Device device) const noexcept override {
    if (device.has_index()) current_device_index = device.index();
  }
  c10::Stream getStream(at::Device device) const noexcept override {
    const auto index = device.has_index() ? device.index() : current_device_index;
    return torch_stream(current_stream_of(index));
  }
  c10::Stream getDefaultStream(at::Device device) const override {
    return torch_stream({{DeviceKind::cuda, device.index()}, nullptr});
  }
  c10::Stream getStreamFromGlobalPool(at::Device device, bool) const override {
    return torch_stream(*new Stream({DeviceKind::cuda, device.index()}));  // as torch's, which are never given back
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override {
    const c10::Stream before = getStream(stream.device());
    current_streams.at(static_cast<std::size_t>(stream.device_index())) = reinterpret_cast<void*>(stream.id());
    return before;
  }
  at::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  void record(void** event, const c10::Stream& stream, at::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event(view_of(stream).device);
    static_cast<Event*>(*event)->record(view_of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) static_cast<Event*>(event)->block(view_of(stream));
  }
  bool queryEvent(void* event) const override { return event == nullptr || static_cast<Event*>(event)->reached(); }
  void destroyEvent(void* event, at::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  void synchronizeStream(const c10::Stream& stream) const override {
    cuda().synchronize(view_of(stream), Deadline::after(std::chrono::minutes(2)));
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    if (data.get_deleter() == &free_owner) static_cast<Owner*>(data.get_context())->used_by(view_of(stream));
  }
};

// As torch's own: memory belongs to the order of the stream that was current.
struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    parked_memory().release();
    auto* owner = new Owner(cuda().allocate(bytes, current_stream_of(current_device_index)));
    return {owner->data(), owner, &free_owner, {at::kCUDA, current_device_index}};
  }
  void copy_data(void*, const void*, std::size_t) const override {
    throw std::logic_error("torch_on_fakes clones no storage");
  }
} allocator;

at::DispatchKeySet cuda_key() { return at::DispatchKeySet(at::DispatchKey::CUDA); }

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(*device);
  return at::detail::empty_generic(size, &allocator, cuda_key(), dtype.value_or(at::kFloat), format);
}
at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(*device);
  return at::detail::empty_strided_generic(size, stride, &allocator, cuda_key(), dtype.value_or(at::kFloat));
}

// Operators of which programs ask whether the device has them, which a fallback does not answer.
constexpr std::array kNamed{"aten::_fused_adam_", "aten::_fused_adamw_", "aten::_fused_sgd_",
                            "aten::_amp_foreach_non_finite_check_and_unscale_"};

// A dtype for which the CPU has a kernel of an operator and CUDA has none, and what CUDA's calls itself. From the
// symbols of libtorch_cuda.so 2.15.0, of the operators that runtime/libtorch calls on a device.
struct Lacking {
  const char* name;
  at::ScalarType dtype;
  const char* kernel;
};
constexpr std::array kLacking{
    Lacking{"aten::_amp_foreach_non_finite_check_and_unscale_", at::kBFloat16,
            "_amp_foreach_non_finite_check_and_unscale_cuda"},
};

// One call of an operator, on its way into a stream.
class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack* stack) : op_(op), stack_(stack) {
    const auto& arguments = op.schema().arguments();
    arguments_ = torch::jit::pop(*stack, arguments.size());
    for (const auto& argument : arguments_) find_device(argument);
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const auto* alias = arguments[i].alias_info();
      on_host_.push_back(on_host(arguments_[i], alias != nullptr && alias->isWrite()));
    }
  }

  void run() {
    enqueue(op_.schema().name(), reads_, writes_, [this] {
      const at::AutoDispatchBelowADInplaceOrView below;
      op_.callBoxed(&on_host_);
    });
    const auto& returns = op_.schema().returns();
    for (std::size_t i = 0; i < returns.size(); ++i) {
      const auto* alias = returns[i].alias_info();
      stack_->push_back(alias != nullptr ? written_argument(*alias) : on_device(on_host_[i]));
    }
    if (host_learns_) cuda().synchronize(stream(), Deadline::after(std::chrono::minutes(2)));
  }

 private:
  StreamView stream() const { return current_stream_of(device_); }

  void find_device(const c10::IValue& value) {
    if (value.isTensor() && value.toTensor().is_cuda()) device_ = value.toTensor().device().index();
    if (value.isDevice() && value.toDevice().is_cuda()) device_ = value.toDevice().index();
    if (!value.isList()) return;
    for (const c10::IValue& item : value.toListRef()) find_device(item);
  }

  c10::IValue on_host(const c10::IValue& value, bool writes) {
    if (value.isTensor()) return on_host(value.toTensor(), writes);
    if (value.isDevice()) return at::Device(at::kCPU);
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& item : value.toTensorVector()) list.push_back(on_host(item, writes));
      return list;
    }
    if (value.isList() && !value.toListRef().empty() && value.toListRef().front().isTensor()) {
      throw std::logic_error(op_.schema().name() + " takes a list that torch_on_fakes does not know");
    }
    return value;
  }
  at::Tensor on_host(const at::Tensor& tensor, bool writes) {
    if (!tensor.defined()) return tensor;
    // A number may be on the CPU, but not for kernels that take its address.
    const std::string& name = op_.schema().name();
    const bool takes_address = std::count(kNamed.begin(), kNamed.end(), name) > 0;
    const bool is_at_home = tensor.is_cuda() ? tensor.get_device() == device_ : tensor.dim() == 0 && !takes_address;
    TORCH_CHECK(is_at_home || name == "aten::copy_", "Expected all tensors to be on the same device, but ", name,
                " has one on ", at::Device(at::kCUDA, device_), " and one on ", tensor.device());
    for (const Lacking& lacking : kLacking) {
      TORCH_CHECK_NOT_IMPLEMENTED(name != lacking.name || tensor.scalar_type() != lacking.dtype, '"', lacking.kernel,
                                  "\" not implemented for '", lacking.dtype, "'");
    }
    if (!tensor.is_cuda()) {
      host_learns_ |= writes;
      return tensor;
    }
    const auto options = at::TensorOptions().dtype(tensor.scalar_type());
    if (tensor.numel() == 0) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
    const fake_cuda::Range range{
        tensor.data_ptr(), at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.element_size())};
    (writes ? writes_ : reads_).push_back(range);
    return at::from_blob(fake_cuda::host_address(tensor.data_ptr()), tensor.sizes(), tensor.strides(), options);
  }

  c10::IValue written_argument(const c10::AliasInfo& alias) const {
    const auto& arguments = op_.schema().arguments();
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const auto* other = arguments[i].alias_info();
      if (alias.isWrite() && other != nullptr && other->beforeSets() == alias.beforeSets()) return arguments_[i];
    }
    throw std::logic_error(op_.schema().name() + " returns a view, which torch_on_fakes does not make");
  }

  c10::IValue on_device(const c10::IValue& value) {
    if (!value.isTensor()) {
      host_learns_ = true;
      return value;
    }
    const at::Tensor& computed = value.toTensor();
    if (!computed.defined()) return value;
    const c10::DeviceGuard guard({at::kCUDA, device_});
    const at::Tensor result = at::detail::empty_strided_generic(computed.sizes(), computed.strides(), &allocator,
                                                                cuda_key(), computed.scalar_type());
    if (result.numel() == 0) return result;
    void* to = fake_cuda::host_address(result.data_ptr());
    enqueue(op_.schema().name() + " (result)", {}, {{result.data_ptr(), result.storage().nbytes()}},
            [&] { std::memcpy(to, computed.data_ptr(), result.storage().nbytes()); });
    return result;
  }

  // Returns when it has run.
  void enqueue(const std::string& what, const std::vector<fake_cuda::Range>& reads,
               const std::vector<fake_cuda::Range>& writes, const std::function<void()>& body) {
    std::promise<void> done;
    int before = 0;
    if (cudaGetDevice(&before) != cudaSuccess || cudaSetDevice(device_) != cudaSuccess) {
      throw std::runtime_error("torch_on_fakes: no device " + std::to_string(device_));
    }
    const cudaError_t error = fake_cuda::enqueue(
        static_cast<cudaStream_t>(stream().handle), what,
        [&] {
          try {
            const at::NoGradGuard no_grad;
            body();
            done.set_value();
          } catch (...) {
            done.set_exception(std::current_exception());
          }
        },
        reads, writes);
    cudaSetDevice(before);
    if (error != cudaSuccess) throw std::runtime_error(what + ": " + cudaGetErrorString(error));
    done.get_future().get();
  }

  const c10::OperatorHandle& op_;
  torch::jit::Stack* stack_;
  std::vector<c10::IValue> arguments_;
  torch::jit::Stack on_host_;
  std::vector<fake_cuda::Range> reads_;
  std::vector<fake_cuda::Range> writes_;
  at::DeviceIndex device_ = current_device_index;
  bool host_learns_ = false;  // a number, or a tensor on the CPU
};

void call(const c10::OperatorHandle& op, torch::jit::Stack* stack) { Call(op, stack).run(); }

TORCH_LIBRARY_IMPL(_, CUDA, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&call>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", static_cast<at::Tensor (*)(const at::Tensor&, at::IntArrayRef)>(&at::native::view));
  library.impl("_reshape_alias", &at::native::_reshape_alias);
  // It has a kernel for any device, which asks for the device's own within.
  library.impl("copy_", torch::CppFunction::makeFromBoxedFunction<&call>());
  for (const char* name : kNamed) library.impl(name, torch::CppFunction::makeFromBoxedFunction<&call>());
}

// What autograd asks before it keeps its streams in order with those of whoever called backward.
struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(at::DeviceIndex) const override { return true; }
  at::DeviceIndex current_device() const override { return current_device_index; }
  at::DeviceIndex getCurrentDevice() const override { return current_device_index; }
  at::DeviceIndex deviceCount() const override { return kDevices; }
  int getNumGPUs() const override { return kDevices; }
  // Generators of the CPU's, one for each device: nothing draws from them, and what seeds them is seen.
  const at::Generator& getDefaultGenerator(at::DeviceIndex device_index) const override {
    static const auto generators = [] {
      std::array<at::Generator, kDevices> each;
      for (at::Generator& generator : each) generator = at::detail::createCPUGenerator();
      return each;
    }();
    const auto index = device_index < 0 ? current_device_index : device_index;
    return generators.at(static_cast<std::size_t>(index));
  }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard)
const bool has_allocator = (c10::SetAllocator(at::kCUDA, &allocator), true);

}  // namespace

}  // namespace lockstep::testing

namespace at {
using lockstep::testing::CUDAHooks;
REGISTER_CUDA_HOOKS(CUDAHooks);
}  // namespace at

extern "C" __attribute__((visibility("default"))) std::int32_t aoti_torch_get_current_cuda_stream(
    std::int32_t device_index, void** stream) {
  *stream = lockstep::testing::current_stream_of(device_index).handle;
  return 0;
}
