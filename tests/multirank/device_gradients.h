// Kernels of a test, for the fake CUDA runtime: what a backward writes into its stream, and a look at the result.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/ddp/reducer.h"
#include "runtime/device/half.h"
#include "tests/conformance/memory.h"
#include "tests/fakes/cudart/fake_cuda.h"

namespace lockstep::testing {

// A kernel over `count` elements in device memory that reads and writes them.
template <typename T>
void launch(StreamView stream, const std::string& what, T* data, std::int64_t count,
            std::function<void(T* data, std::int64_t count)> body) {
  const fake_cuda::Range all{data, static_cast<std::size_t>(count) * sizeof(T)};
  const cudaError_t error = fake_cuda::enqueue(
      static_cast<cudaStream_t>(stream.handle), what,
      [data = static_cast<T*>(fake_cuda::host_address(data)), count, body = std::move(body)] { body(data, count); },
      {all}, {all});
  if (error != cudaSuccess) throw DeviceError("a launch of a test failed");
}

// Gradient `parameter`, element i: += of(i) if the reducer accumulates, else =. In the group's stream, without a wait.
template <typename T = float>
void write_gradient(ProcessGroup& group, Reducer& reducer, int parameter, std::function<double(std::int64_t)> of) {
  const ParameterSpec& spec = reducer.parameters()[static_cast<std::size_t>(parameter)];
  const bool adds = reducer.accumulating();
  launch<T>(group.stream(), "backward of " + spec.name, reducer.gradient<T>(parameter), spec.count(),
            [adds, of = std::move(of)](T* data, std::int64_t count) {
              const auto number = [](T value) {
                if constexpr (std::is_floating_point_v<T>)
                  return static_cast<double>(value);
                else
                  return static_cast<double>(to_float(value));
              };
              for (std::int64_t i = 0; i < count; ++i) {
                const double value = (adds ? number(data[i]) : 0.0) + of(i);
                if constexpr (std::is_same_v<T, bfloat16>)
                  data[i] = to_bfloat16(static_cast<float>(value));
                else if constexpr (std::is_same_v<T, float16>)
                  data[i] = to_float16(static_cast<float>(value));
                else
                  data[i] = static_cast<T>(value);
              }
            });
}
template <typename T = float>
void write_gradient(ProcessGroup& group, Reducer& reducer, int parameter, double value) {
  write_gradient<T>(group, reducer, parameter, [value](std::int64_t) { return value; });
}

// The gradient as it is behind what the group's stream has; `beyond` elements more, of the padding.
template <typename T = float>
std::vector<T> gradient_of(ProcessGroup& group, Reducer& reducer, int parameter, std::size_t beyond = 0) {
  const auto count = static_cast<std::size_t>(reducer.parameters()[static_cast<std::size_t>(parameter)].count());
  std::vector<T> values(count + beyond);
  download(group.stream(), std::as_writable_bytes(std::span(values)), reducer.gradient<T>(parameter));
  return values;
}

}  // namespace lockstep::testing
