// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ddp/comm_hook.h"

#include <memory>

#include "lockstep/device/dtype.h"
#include "runtime/device/half_arrays.h"

namespace lockstep {
namespace {

float16 narrowed(float value, float16) { return to_float16(value); }
bfloat16 narrowed(float value, bfloat16) { return to_bfloat16(value); }

template <typename T, typename Wire>
void narrow(const T* values, Wire* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] = narrowed(static_cast<float>(values[i]), Wire{});
}
void narrow(const float* values, float16* out, std::size_t count) { to_float16s(values, out, count); }
template <typename T, typename Wire>
void widen(const Wire* values, T* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] = to_float(values[i]);
}
void widen(const float16* values, float* out, std::size_t count) { to_floats(values, out, count); }

template <typename T, typename Wire>
HookedBucket travel_as(const GradBucket& bucket) {
  const auto count = static_cast<std::size_t>(bucket.buffer.count);
  auto* const values = static_cast<T*>(bucket.buffer.data);
  const std::shared_ptr<Wire[]> wire = std::make_shared_for_overwrite<Wire[]>(count);
  narrow(values, wire.get(), count);
  return {.work = bucket.group->all_reduce(BufferView(std::span(wire.get(), count))),
          .finish = [buffer = bucket.buffer, wire, values, count] {
            widen(wire.get(), values, count);
            return buffer;
          }};
}

template <typename Wire>
HookedBucket compress(const GradBucket& bucket) {
  switch (bucket.buffer.dtype) {
    case DType::f32: return travel_as<float, Wire>(bucket);
    case DType::f64: return travel_as<double, Wire>(bucket);
    default: return {.work = bucket.group->all_reduce(bucket.buffer)};
  }
}

}  // namespace

CommHook bf16_compress_hook() { return {"bf16_compress", compress<bfloat16>}; }
CommHook fp16_compress_hook() { return {"fp16_compress", compress<float16>}; }
CommHook noop_hook() {
  return {"noop", [](const GradBucket&) { return HookedBucket{}; }};
}

}  // namespace lockstep
