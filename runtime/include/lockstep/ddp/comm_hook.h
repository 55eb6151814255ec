// SPDX-License-Identifier: Apache-2.0
// Defines CommHook: a function that a program provides to sum gradients over the ranks in place of the group's
// all-reduce, like PyTorch's register_comm_hook.
//
//   DistributedDataParallel ddp(model, group, {.comm_hook = bf16_compress_hook()});
//
//   const CommHook plain{"plain", [](const GradBucket& bucket) -> HookedBucket {
//     return {bucket.group->all_reduce(bucket.buffer)};  // in place: the sum over the ranks
//   }};
//
// Sums: a hook gets the sum of this rank's gradients in a bucket and returns the sum over the ranks. The hook must not
//   divide the sum, because the Reducer divides the hook's result by the sum of the ranks' weights. The hook must
//   return equal bits on all ranks; otherwise the replicas diverge.
// Collective: the Reducer calls the hook on every rank for each bucket of a synchronised step, in the order of
//   the buckets.
// Threads: a CommHook runs on the thread of backward().
// Failure: if a CommHook throws, the step throws an Error that names step, bucket and hook, with the original exception
//   nested; PeerLost, Timeout and Mismatch keep their type. After a hook has thrown, every later call of the Reducer on
//   this rank throws the exception again, also in a group of one rank.
//
// Three pages describe the reasons for scaled sums, the costs of hooks, and hooks on GPUs:
// docs/LIBTORCH_REFERENCE.md, "Communication hooks", docs/adr/0032-a-hook-exchanges-buckets-the-reducer-divides.md
// and docs/adr/0084-hooks-and-shards-wait-in-streams-on-a-device.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/bucket_plan.h"
#include "lockstep/device/stream.h"

namespace lockstep {

// GradBucket is the argument of a hook. A GradBucket is valid during the call of the hook; its buffer stays valid until
// the Reducer has read the hook's result.
struct GradBucket {
  struct Slice {
    const ParameterSpec& parameter;  // the parameter's name, dtype and shape
    std::int64_t offset;             // number of elements from the beginning of the bucket to the gradient
  };
  // The group whose all-reduce the hook replaces. Every rank must start the group's collectives in the same order. If a
  // hook uses a second group, the collectives of the second group start after the work in the second group's stream();
  // the hook can set the second group's stream with set_stream().
  const std::shared_ptr<ProcessGroup>& group;
  std::int64_t step;  // number of synchronised steps before this step
  // `index` is the number of this bucket, from 0, and `buckets` is the number of buckets. A DistributedDataParallel has
  // equal buckets in all steps; a Reducer without plan_order() plans its buckets a second time after the first step.
  int index;
  int buckets;
  // The sum of this rank's gradients, each multiplied by weight / weight_unit() of its micro-batch and divided by
  // `scale`. The buffer is one-dimensional, on the group's device, in the dtype of the parameters, and padded with
  // zeros to whole cache lines. The hook may write to the buffer. On a device, work in group->stream() fills the
  // buffer, so a kernel of the hook that reads the buffer must run in group->stream(), or wait for an event in
  // group->stream(). Collectives of the group start after the work in group->stream().
  BufferView buffer;
  std::span<const Slice> slices;  // in the order of the gradients in memory
  // The smallest power of two that is at least w / weight_unit(), where w is the sum of all ranks' weights in the step.
  // Division by `scale` makes the numbers in the buffer no larger than the gradients of a mean loss, so that 16-bit
  // floats can hold the numbers. `scale` is equal on all ranks.
  //
  // On a device, the host waits for the ranks' summed weight only in the first two steps. In later steps, `scale` is
  // computed from the larger of two earlier summed weights: the weight two steps ago and the weight three steps ago. If
  // the present step's summed weight is larger than the weight from which `scale` was computed, the numbers in the
  // buffer are larger by the ratio of these two weights. The Reducer always divides the hook's result by the present
  // step's summed weight.
  std::int64_t scale;
  // A stream for kernels that the hook launches between two collectives, because kernels in the group's stream would
  // delay backward(). On a device, `side` belongs to the Reducer; without events, the work in `side` and the work in
  // the group's stream have no fixed order. On the CPU, `side` is the group's stream.
  StreamView side;

  bool is_last() const { return index + 1 == buckets; }
};

// HookedBucket is the result of a hook.
struct HookedBucket {
  // The collective that computes the hook's result: the Reducer reads the result after the collective is done. An empty
  // Work means that the result is ready when the hook returns. If the program derives its own class from WorkState for
  // this Work, WorkState::wait() must return by the deadline; on a device the Reducer calls WorkState::wait_on()
  // instead. If the Work is not done within the group's timeout after the end of backward(), the step throws Timeout.
  Work work = {};
  // The function that returns the sum over the ranks: a buffer with the bucket's size, dtype and device, in memory that
  // lives as long as `finish`. If the buffer that `finish` returns has a wrong size or dtype, the step throws an Error.
  // If `finish` is null, the Reducer takes the sum from the bucket's buffer.
  //
  // The Reducer calls `finish` once, on the thread of backward(). On the CPU, the Reducer calls `finish` after
  // `work` is done; on a device, after the Reducer has made the group's stream wait for `work`. `finish` must launch
  // its kernels in the group's stream. `finish` may not start a collective, because the ranks call `finish` at
  // different times.
  std::function<BufferView()> finish = {};
  // The number of bytes that the hook sends; the trace shows this number. The default of `bytes` is the size of
  // the bucket.
  std::optional<std::size_t> bytes = {};
};

// CommHook is a hook with a name. The Reducer calls the hook on every rank, even if the rank's weight is 0 or the group
// has one rank, but never in no_sync(). A step with a hook needs an additional small collective, because the summed
// weight must be known before the first bucket is sent. On the CPU, the first bucket is sent only after every rank has
// begun its backward().
//
// If a hook returns the result of the group's all_reduce(), the step's gradients are bitwise equal to the gradients of
// a step without a hook. The bits may differ from a step without a hook if GradBucket::scale makes numbers subnormal,
// or if parameters have 16-bit dtypes, because the hook's sum of 16-bit gradients is rounded before the division.
//
// The Reducer's constructor throws InvalidArgument if `name` or `run` is empty, and throws Mismatch on every rank if
// the ranks' hooks have different names.
struct CommHook {
  // The name of the format in which the hook sends gradients; the Reducer's constructor checks that the name is equal
  // on all ranks.
  std::string name = {};
  std::function<HookedBucket(const GradBucket&)> run = {};
};

// HalfSum says how a compress hook sums 16-bit floats over the ranks.
enum class HalfSum : std::uint8_t {
  // Sums in float32, in rank order (ProcessGroup::sums_in_rank_order), and rounds the sum once. On a device, where the
  // group's all-reduce does not sum in rank order, the hook uses an all-to-all, a sum on each rank and an all-gather.
  // The all-to-all and the all-gather together send as many bytes as an all-reduce.
  in_float32,
  // Sums with the group's all-reduce. NCCL chooses the order of the sum and rounds to 16 bits at every hop; a group on
  // the CPU sums like HalfSum::in_float32.
  backend,
};

struct CompressOptions {
  HalfSum sum = HalfSum::in_float32;
};

// bf16_compress_hook() and fp16_compress_hook() return hooks that send float32 gradients as bfloat16 or float16, in
// half the bytes. A compress hook rounds each rank's sum to 16 bits, adds the ranks' sums as options.sum says, and
// rounds the result to 16 bits. Gradients of 16-bit parameters are sent unchanged. The format float16 keeps three more
// bits than bfloat16, but only for gradients between 6e-8 and 65504 / (number of ranks).
LOCKSTEP_API CommHook bf16_compress_hook(const CompressOptions& options = {});
LOCKSTEP_API CommHook fp16_compress_hook(const CompressOptions& options = {});
// Returns a hook that sends nothing and returns its input, to measure the time of a step without communication. With
// noop_hook() the replicas diverge, so set DdpOptions::compare_every to 0, and discard the results of the run.
LOCKSTEP_API CommHook noop_hook();

}  // namespace lockstep
