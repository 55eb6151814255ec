// SPDX-License-Identifier: Apache-2.0
// A CommHook is a program's own exchange of gradients, which replaces the group's all-reduce, like
// PyTorch's register_comm_hook.
//
//   DistributedDataParallel ddp(model, group, {.comm_hook = bf16_compress_hook()});
//
//   const CommHook plain{"plain", [](const GradBucket& bucket) -> HookedBucket {
//     return {bucket.group->all_reduce(bucket.buffer)};  // in place: the sum over the ranks
//   }};
//
// - A hook turns this rank's sum of a bucket into the sum over the ranks. The hook must not divide, because the Reducer
//   divides by the summed weight. The hook must give equal bits on all ranks; otherwise the replicas differ.
// - Collective: every rank calls the hook for each bucket of a synchronised step, in the order of the buckets.
// - Threads: the hook runs on the thread of backward.
// - Failure: an exception of the hook becomes an Error that names step, bucket and hook, with the original exception
//   nested; PeerLost, Timeout and Mismatch keep their type. The exception is a failure of this rank: every later call
//   throws it, also with a single rank.
//
// The reasons for scaled sums, the costs of hooks, and hooks on GPUs are in docs/LIBTORCH_REFERENCE.md, "Communication
// hooks", docs/adr/0032-a-hook-exchanges-buckets-the-reducer-divides.md
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

// GradBucket is the argument of a hook. The GradBucket is valid during the hook's call, and its buffer until the
// Reducer has read the hook's result.
struct GradBucket {
  struct Slice {
    const ParameterSpec& parameter;  // the parameter's name, dtype and shape
    std::int64_t offset;             // number of elements from the beginning of the bucket to the gradient
  };
  // The group whose all-reduce the hook replaces. Every rank starts the group's collectives in one order. If a hook
  // uses another group, that group's collectives follow its own stream, until set_stream() gives it the stream of
  // this group.
  const std::shared_ptr<ProcessGroup>& group;
  std::int64_t step;  // number of synchronised steps before this step
  // The number of this bucket, from 0, and the number of buckets. A DistributedDataParallel has the same buckets in all
  // steps; a Reducer without plan_order() plans its buckets once more after the first step.
  int index;
  int buckets;
  // This rank's sum: its gradients, each multiplied by its weight over weight_unit() and divided by `scale`. The buffer
  // is flat, on the group's device, in the dtype of the parameters, padded with zeros to whole cache lines. The hook
  // may write to the buffer. On a device, work in group->stream() fills the buffer: the hook puts its kernels into this
  // stream, and collectives that the hook starts follow this stream.
  BufferView buffer;
  std::span<const Slice> slices;  // in the order of the gradients in memory
  // The least power of two that is at least the step's summed weight over weight_unit(). Dividing by `scale` makes the
  // buffer's numbers no larger than gradients of means, so that 16-bit floats can hold them. `scale` is equal on
  // all ranks.
  //
  // On a device the host waits for the summed weight in the first two steps. A later step's scale comes from the larger
  // one of two summed weights: that of two steps before, and that of three steps before. If the step's own weight is
  // larger than both, the buffer's numbers are larger by the ratio of these weights. The Reducer always divides by the
  // step's own weight.
  std::int64_t scale;
  // A stream for a hook's kernels between two collectives. On a device this stream belongs to the Reducer, and only
  // events order it with the group's stream; kernels in the group's stream would make backward wait. On the CPU `side`
  // is the group's stream.
  StreamView side;

  bool is_last() const { return index + 1 == buckets; }
};

// HookedBucket is the result of a hook.
struct HookedBucket {
  // The collective that makes the result: the Reducer reads the result after the collective is done. With an empty Work
  // the result is ready now. A program's own Work has a WorkState whose wait() returns at the deadline; on a device the
  // Reducer calls wait_on() instead. If the Work is not done within the group's timeout after the end of backward, the
  // step throws Timeout.
  Work work = {};
  // The function that returns the sum over the ranks: a buffer with the bucket's size, dtype and device, in memory that
  // lives as long as this function. A buffer of another size or dtype fails the hook with an Error. If `finish` is
  // null, the sum is in the bucket's buffer.
  //
  // The Reducer calls `finish` once, on the thread of backward: on the CPU when the work is done, on a device when the
  // group's stream waits for the work. `finish` puts its kernels into the group's stream. `finish` may not start a
  // collective, because ranks see the end of a work at different times.
  std::function<BufferView()> finish = {};
  // The number of bytes that travel, for the trace. The default is the size of the bucket.
  std::optional<std::size_t> bytes = {};
};

// CommHook is a named hook. The Reducer calls the hook on every rank, also on ranks of weight 0 and in a group of one
// rank, and never in no_sync(). A step with a hook needs one more small collective, because the summed weight must be
// known before the first bucket leaves. On the CPU the first bucket waits until every rank has begun its backward.
//
// A hook that returns the group's own sum gives the same bits as a step without a hook. Numbers that the scale makes
// subnormal are an exception, and so are 16-bit parameters, whose sum is rounded before the division.
//
// The constructor of the Reducer throws InvalidArgument if `name` or `run` is empty, and Mismatch on every rank if the
// ranks' hooks have different names.
struct CommHook {
  // The name of the format in which gradients travel; the ranks compare this name.
  std::string name = {};
  std::function<HookedBucket(const GradBucket&)> run = {};
};

// HalfSum says how 16-bit floats are summed over the ranks.
enum class HalfSum : std::uint8_t {
  // Sums in float32, in the order of the ranks (ProcessGroup::sums_in_rank_order), and rounds once. On a device the
  // group's all-reduce has another order, so `in_float32` takes an all-to-all, a sum on each rank and an all-gather.
  // Together these send as many bytes as an all-reduce, with one more collective.
  in_float32,
  // Sums by the group's all-reduce. NCCL chooses the order and rounds to 16 bits at every hop; a group on the CPU sums
  // as with in_float32.
  backend,
};

struct CompressOptions {
  HalfSum sum = HalfSum::in_float32;
};

// Return hooks that send float32 gradients as bfloat16 or float16, in half the bytes. The hook rounds each rank's sum
// to 16 bits, adds the ranks' sums as HalfSum says, and rounds the result to 16 bits. Gradients of 16-bit parameters
// travel unchanged. float16 keeps three more bits than bfloat16, but only for gradients between 6e-8 and 65504 (divided
// by the number of ranks).
LOCKSTEP_API CommHook bf16_compress_hook(const CompressOptions& options = {});
LOCKSTEP_API CommHook fp16_compress_hook(const CompressOptions& options = {});
// Returns a hook that sends nothing and returns its input, for measuring a step without communication. The replicas
// diverge: set DdpOptions::compare_every to 0, and discard the results of a run with this hook.
LOCKSTEP_API CommHook noop_hook();

}  // namespace lockstep
