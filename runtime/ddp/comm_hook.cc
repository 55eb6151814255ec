// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ddp/comm_hook.h"

#include <memory>

#include "lockstep/device/half.h"

namespace lockstep {
namespace {

void narrow(double value, bfloat16& out) { out = to_bfloat16(static_cast<float>(value)); }
void narrow(double value, float16& out) { out = to_float16(static_cast<float>(value)); }
void narrow(float value, bfloat16& out) { out = to_bfloat16(value); }
void narrow(float value, float16& out) { out = to_float16(value); }

template <typename T, typename Wire>
HookedBucket travel_as(const GradBucket& bucket) {
  const auto count = static_cast<std::size_t>(bucket.buffer.count);
  auto* const values = static_cast<T*>(bucket.buffer.data);
  const std::shared_ptr<Wire[]> wire = std::make_shared_for_overwrite<Wire[]>(count);
  for (std::size_t i = 0; i < count; ++i) narrow(values[i], wire[i]);
  return {.work = bucket.group->all_reduce(BufferView(std::span(wire.get(), count))),
          .finish = [buffer = bucket.buffer, wire, values, count] {
            for (std::size_t i = 0; i < count; ++i) values[i] = to_float(wire[i]);
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
