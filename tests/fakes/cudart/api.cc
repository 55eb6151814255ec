// SPDX-License-Identifier: Apache-2.0
// The functions of CUDA, each a line over Runtime. C linkage and names as in cuda_runtime_api.h, which may map a name
// to a version of its own.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/fakes/cudart/blocks.h"
#include "tests/fakes/cudart/runtime.h"

namespace lockstep::fake_cuda {
cudaError_t& last_error_of_thread();
namespace {

// One that needs no context of a device.
template <typename Body>
cudaError_t ask(const char* function, const Body& body) {
  Runtime& runtime = Runtime::get();
  cudaError_t result = cudaSuccess;
  if (!runtime.begin(function, result)) return runtime.finish(result);
  return runtime.finish(body(runtime));
}

template <typename Body>
cudaError_t call(const char* function, const Body& body) {
  return ask(function, [&](Runtime& runtime) {
    runtime.need_context();
    return body(runtime);
  });
}

// The driver's cuCtxGetCurrent, as far as anybody looks.
int current_context(void** context) {
  static int any = 0;
  *context = Runtime::thread_has_context() ? &any : nullptr;
  return 0;
}

// A copy as CUDA makes it: in the stream, but with memory that is not pinned the host takes part.
cudaError_t copy(Runtime& runtime, void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  const bool staged_from = !runtime.is_pinned_or_device(from);
  const bool staged_to = !runtime.is_pinned_or_device(to);
  const auto put = [&](const void* source) {
    return runtime.enqueue(stream, fmt::format("copy of {} bytes", bytes),
                           [to = runtime.host_address(to), source = runtime.host_address(source), bytes] {
                             std::memmove(to, source, bytes);
                           },
                           {{source, bytes}}, {{to, bytes}});
  };
  cudaError_t result = cudaSuccess;
  if (staged_from && !staged_to) {
    // The bytes are taken before the call returns.
    runtime.count_host_synchronisation();
    const auto staged = std::make_shared<std::vector<std::byte>>(bytes);
    std::memcpy(staged->data(), from, bytes);
    result =
        runtime.enqueue(stream, fmt::format("copy of {} bytes from pageable memory", bytes),
                        [to = runtime.host_address(to), staged] { std::memcpy(to, staged->data(), staged->size()); },
                        {}, {{to, bytes}});
  } else {
    result = put(from);
  }
  if (result != cudaSuccess || !staged_to) return result;
  return runtime.synchronize_stream(stream);
}

cudaError_t set(Runtime& runtime, void* data, int value, std::size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  return runtime.enqueue(stream, fmt::format("memset of {} bytes", bytes),
                         [at = runtime.host_address(data), value, bytes] { std::memset(at, value, bytes); }, {},
                         {{data, bytes}});
}

// A call that may wait for the device, and so none for where something is being captured.
template <typename Body>
cudaError_t unsafe(const char* function, const Body& body) {
  return call(function, [&](Runtime& runtime) {
    const cudaError_t refused = runtime.unsafe_call();
    return refused == cudaSuccess ? body(runtime) : refused;
  });
}

// Of calls that the runtime has by another name.
template <typename... Parameters>
using Member = cudaError_t (Runtime::*)(Parameters...);
template <typename... Parameters, typename... Arguments>
cudaError_t call(const char* function, Member<Parameters...> member, const Arguments&... arguments) {
  return call(function, [&](Runtime& runtime) { return (runtime.*member)(arguments...); });
}
template <typename... Parameters, typename... Arguments>
cudaError_t unsafe(const char* function, Member<Parameters...> member, const Arguments&... arguments) {
  return unsafe(function, [&](Runtime& runtime) { return (runtime.*member)(arguments...); });
}

struct Words {
  cudaError_t error;
  const char* name;
  const char* text;
};
Words words_of(cudaError_t error) {
  static constexpr Words kKnown[] = {
      {cudaSuccess, "cudaSuccess", "no error"},
      {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
      {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
      {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
       "CUDA driver version is insufficient for CUDA runtime version"},
      {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
      {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
      {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
      {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
      {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
  };
  for (const Words& known : kKnown) {
    if (known.error == error) return known;
  }
  return {error, "cudaError", "an error of the fake"};
}

bool bad(int device) { return device < 0 || device >= Runtime::get().device_count(); }

}  // namespace

}  // namespace lockstep::fake_cuda

using lockstep::fake_cuda::ask;
using lockstep::fake_cuda::bad;
using lockstep::fake_cuda::call;
using lockstep::fake_cuda::Captures;
using lockstep::fake_cuda::Runtime;
using lockstep::fake_cuda::unsafe;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  // Without a device the count is left as it was.
  return ask("cudaGetDeviceCount", [&](Runtime& runtime) {
    *count = runtime.device_count();
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  return ask("cudaSetDevice", [&](Runtime& runtime) {
    if (bad(device)) return cudaErrorInvalidDevice;
    runtime.current() = device;
    runtime.need_context();  // from CUDA 12 on
    return cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return ask("cudaGetDevice", [&](Runtime& runtime) {
    *device = runtime.current();
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return ask("cudaGetDeviceProperties", [&](Runtime& runtime) {
    if (bad(device)) return cudaErrorInvalidDevice;
    *properties = {};
    const int physical = runtime.physical(device);
    std::strcpy(properties->name, "Fake GPU");
    const std::uint8_t uuid[16] = {0xfa, 0x6e, 0xc0, 0xda};
    std::memcpy(properties->uuid.bytes, uuid, 16);
    properties->uuid.bytes[14] = static_cast<char>(physical >> 8);
    properties->uuid.bytes[15] = static_cast<char>(physical);
    std::size_t free_bytes = 0;
    runtime.memory_info(free_bytes, properties->totalGlobalMem);
    properties->major = 9;
    properties->multiProcessorCount = runtime.multiprocessors();
    properties->pciBusID = physical + 1;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  return ask("cudaDeviceGetPCIBusId", [&](Runtime& runtime) {
    if (bad(device)) return cudaErrorInvalidDevice;
    const std::string id = fmt::format("0000:{:02x}:00.0", runtime.physical(device) + 1);
    if (static_cast<std::size_t>(length) <= id.size()) return cudaErrorInvalidValue;
    std::memcpy(text, id.c_str(), id.size() + 1);
    return cudaSuccess;
  });
}

cudaError_t cudaDriverGetVersion(int* version) {
  // 0 where there is no driver.
  *version = Runtime::get().none() == cudaErrorInsufficientDriver ? 0 : CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

// Named so since 12.5, and the one that there is before.
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  return ask("cudaGetDriverEntryPointByVersion", [&](Runtime&) {
    const bool known = std::strcmp(symbol, "cuCtxGetCurrent") == 0;
    *function = known ? reinterpret_cast<void*>(&lockstep::fake_cuda::current_context) : nullptr;
    if (found != nullptr) *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* found) {
  return cudaGetDriverEntryPointByVersion(symbol, function, CUDART_VERSION, flags, found);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return call("cudaDeviceGetStreamPriorityRange", [&](Runtime&) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
  });
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  return call("cudaFuncGetAttributes", [&](Runtime& runtime) {
    if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
    lockstep::fake_cuda::load(kernel, runtime.physical(runtime.current()));
    *attributes = {};
    attributes->maxThreadsPerBlock = 1024;
    return cudaSuccess;
  });
}

cudaError_t cudaMalloc(void** data, size_t bytes) { return unsafe(__func__, &Runtime::allocate, data, bytes, false); }

cudaError_t cudaFree(void* data) { return unsafe(__func__, &Runtime::free, data, false); }

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return ask("cudaDeviceGetAttribute", [&](Runtime& runtime) {
    if (bad(device)) return cudaErrorInvalidDevice;
    switch (attribute) {
      case cudaDevAttrMemoryPoolsSupported: *value = 1; return cudaSuccess;
      case cudaDevAttrMultiProcessorCount: *value = runtime.multiprocessors(); return cudaSuccess;
      default: return cudaErrorInvalidValue;
    }
  });
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* wanted) {
  return unsafe(__func__, &Runtime::create_pool, pool, *wanted);
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return call(__func__, &Runtime::set_attribute, pool, attribute, value);
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return call(__func__, &Runtime::get_attribute, pool, attribute, value);
}

cudaError_t cudaMallocFromPoolAsync(void** data, size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
  return unsafe(__func__, &Runtime::allocate_from, pool, data, bytes, stream);
}

cudaError_t cudaFreeAsync(void* data, cudaStream_t stream) { return unsafe(__func__, &Runtime::free_in, data, stream); }

cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) {
  return unsafe(__func__, &Runtime::allocate, data, bytes, true);
}

cudaError_t cudaFreeHost(void* data) { return unsafe(__func__, &Runtime::free, data, true); }

cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  return call("cudaMemGetInfo", [&](Runtime& runtime) {
    runtime.memory_info(*free_bytes, *total_bytes);
    return cudaSuccess;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  return call("cudaPointerGetAttributes", [&](Runtime& runtime) {
    *attributes = {};
    attributes->type = cudaMemoryTypeUnregistered;
    if (runtime.is_pinned_or_device(data)) {
      attributes->device = runtime.device_of(data);
      attributes->type = runtime.is_device(data) ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
      attributes->devicePointer = const_cast<void*>(data);
    }
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return call("cudaMemcpyAsync",
              [&](Runtime& runtime) { return lockstep::fake_cuda::copy(runtime, to, from, bytes, stream); });
}

cudaError_t cudaMemsetAsync(void* data, int value, std::size_t bytes, cudaStream_t stream) {
  return call("cudaMemsetAsync",
              [&](Runtime& runtime) { return lockstep::fake_cuda::set(runtime, data, value, bytes, stream); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return call(__func__, &Runtime::create_stream, stream, (flags & cudaStreamNonBlocking) == 0);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return call(__func__, &Runtime::create_stream, stream, (flags & cudaStreamNonBlocking) == 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) { return call(__func__, &Runtime::destroy_stream, stream); }

cudaError_t cudaStreamQuery(cudaStream_t stream) { return call(__func__, &Runtime::query_stream, stream); }

cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return call(__func__, &Runtime::synchronize_stream, stream); }

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return call(__func__, &Runtime::wait, stream, event);
}

cudaError_t cudaDeviceSynchronize() { return call(__func__, &Runtime::synchronize_device); }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return call(__func__, &Runtime::create_event, event, (flags & cudaEventDisableTiming) == 0);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) { return call(__func__, &Runtime::destroy_event, event); }

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return call(__func__, &Runtime::record, event, stream);
}

cudaError_t cudaEventQuery(cudaEvent_t event) { return call(__func__, &Runtime::query_event, event); }

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return ask("cudaThreadExchangeStreamCaptureMode", [&](Runtime&) {
    Captures::exchange_mode(*mode);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return call(__func__, &Runtime::begin_capture, stream, mode);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  return call("cudaStreamEndCapture", [&](Runtime& runtime) { return runtime.end_capture(stream); });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return call(__func__, &Runtime::is_capturing, stream, status);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) { return call(__func__, &Runtime::synchronize_event, event); }

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t earlier, cudaEvent_t later) {
  return call(__func__, &Runtime::elapsed, milliseconds, earlier, later);
}

cudaError_t cudaGetLastError() {
  cudaError_t& last = lockstep::fake_cuda::last_error_of_thread();
  const cudaError_t error = last;
  last = cudaSuccess;
  return error;
}

const char* cudaGetErrorName(cudaError_t error) { return lockstep::fake_cuda::words_of(error).name; }
const char* cudaGetErrorString(cudaError_t error) { return lockstep::fake_cuda::words_of(error).text; }

}  // extern "C"
