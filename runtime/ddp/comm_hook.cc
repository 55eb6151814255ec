// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ddp/comm_hook.h"

#include <memory>

#include "lockstep/device/device_runtime.h"
#include "runtime/ddp/ordered_sum.h"

namespace lockstep {
namespace {

bool is_half(const BufferView& buffer) { return size_of(buffer.dtype) == 2; }

HookedBucket sum_of_group(const GradBucket& bucket, DType wire) {
  const BufferView buffer = bucket.buffer;
  if (is_half(buffer)) return {.work = bucket.group->all_reduce(buffer)};
  DeviceRuntime& runtime = device_runtime(buffer.device.kind);
  const auto memory = runtime.allocate(static_cast<std::size_t>(buffer.count) * size_of(wire), bucket.group->stream());
  const BufferView half(memory.get(), buffer.count, wire, buffer.device);
  runtime.convert(buffer, half, bucket.group->stream());
  return {.work = bucket.group->all_reduce(half),
          .finish =
              [&runtime, group = bucket.group, memory, half, buffer] {
                runtime.convert(half, buffer, group->stream());
                return buffer;
              },
          .bytes = half.bytes()};
}

HookedBucket sum_in_order(const GradBucket& bucket, DType wire) {
  const BufferView buffer = bucket.buffer;
  const int world = bucket.group->size();
  DeviceRuntime& runtime = device_runtime(buffer.device.kind);
  const auto sum = std::make_shared<OrderedSum>(bucket.group, bucket.side, order_of_nodes(world, world), buffer.count,
                                                is_half(buffer) ? buffer.dtype : wire);
  if (is_half(buffer)) {
    sum->put(0, buffer.data);
  } else {
    runtime.convert(buffer, sum->row(), bucket.side);
  }
  sum->send();
  sum->gather();
  return {.work = sum->work(),
          .finish =
              [&runtime, group = bucket.group, sum, buffer] {
                if (is_half(buffer)) return sum->sum();
                runtime.convert(sum->sum(), buffer, group->stream());
                return buffer;
              },
          .bytes = sum->row().bytes()};
}

// Returns the hook. The hook's name depends on `options.sum`: the ranks compare the names of their hooks, and so notice
// if `options.sum` differs between ranks.
CommHook compress_hook(const char* name, DType wire, const CompressOptions& options) {
  if (options.sum == HalfSum::backend) {
    return {std::string(name) + ", summed by the backend",
            [wire](const GradBucket& bucket) { return sum_of_group(bucket, wire); }};
  }
  return {name, [wire](const GradBucket& bucket) {
            // On the CPU the group's own all-reduce adds in the same order as sum_in_order().
            const bool is_on_cpu = bucket.buffer.device.kind == DeviceKind::cpu;
            return is_on_cpu ? sum_of_group(bucket, wire) : sum_in_order(bucket, wire);
          }};
}

}  // namespace

CommHook bf16_compress_hook(const CompressOptions& options) {
  return compress_hook("bf16_compress", DType::bf16, options);
}
CommHook fp16_compress_hook(const CompressOptions& options) {
  return compress_hook("fp16_compress", DType::f16, options);
}
CommHook noop_hook() {
  return {"noop", [](const GradBucket&) { return HookedBucket{.bytes = 0}; }};
}

}  // namespace lockstep
