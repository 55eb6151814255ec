// SPDX-License-Identifier: Apache-2.0
// What a backward writes and an optimizer reads, wherever a group's memory is: kernels in the group's stream.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/ddp/reducer.h"
#include "lockstep/device/dtype.h"
#include "tests/conformance/memory.h"

namespace lockstep::testing {

struct Kernel {
  std::string name;
  void* data = nullptr;  // read and written
  std::size_t bytes = 0;
  const void* source = nullptr;  // read, as many bytes; null: none
  // Called with addresses that the host can use.
  std::function<void(void* data, const void* source)> body;
};
// kernels_on_host.cc calls the body at once, kernels_on_fake_cuda.cc puts it into the stream.
void enqueue(StreamView stream, Kernel kernel);

// A kernel over `count` elements that reads and writes them.
template <typename T>
void launch(StreamView stream, const std::string& name, T* data, std::int64_t count,
            std::function<void(T* data, std::int64_t count)> body) {
  enqueue(stream,
          {.name = name,
           .data = data,
           .bytes = static_cast<std::size_t>(count) * sizeof(T),
           .body = [count, body = std::move(body)](void* at, const void*) { body(static_cast<T*>(at), count); }});
}

template <typename T>
double number(T value) {
  if constexpr (std::is_floating_point_v<T>)
    return static_cast<double>(value);
  else
    return static_cast<double>(to_float(value));
}
template <typename T>
T from_number(double value) {
  if constexpr (std::is_same_v<T, bfloat16>)
    return to_bfloat16(static_cast<float>(value));
  else if constexpr (std::is_same_v<T, float16>)
    return to_float16(static_cast<float>(value));
  else
    return static_cast<T>(value);
}

// Gradient `parameter`, element i: += of(i) if the reducer accumulates, else =. In the group's stream, without a wait.
template <typename T = float>
void write_gradient(ProcessGroup& group, Reducer& reducer, int parameter, std::function<double(std::int64_t)> of) {
  const ParameterSpec& spec = reducer.parameters()[static_cast<std::size_t>(parameter)];
  const bool adds = reducer.accumulating();
  launch<T>(group.stream(), "backward of " + spec.name, reducer.gradient<T>(parameter), spec.count(),
            [adds, of = std::move(of)](T* data, std::int64_t count) {
              for (std::int64_t i = 0; i < count; ++i) {
                data[i] = from_number<T>((adds ? number(data[i]) : 0.0) + of(i));
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
