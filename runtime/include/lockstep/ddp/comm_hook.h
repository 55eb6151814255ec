// SPDX-License-Identifier: Apache-2.0
// A program's own exchange of gradients, in place of the group's all-reduce: PyTorch's register_comm_hook.
//
//   DistributedDataParallel ddp(model, group, {.comm_hook = bf16_compress_hook()});
//
//   const CommHook plain{"plain", [](const GradBucket& bucket) -> HookedBucket {
//     return {bucket.group->all_reduce(bucket.buffer)};  // in place: the sum over the ranks
//   }};
//
// A hook gets this rank's sum of a bucket and gives back the sum over the ranks. A hook must not weigh: the Reducer
// divides the result by the summed weight, as without a hook. The bucket is scaled by a power of two
// (GradBucket::scale), so that it is not larger than gradients of means, and 16 bits hold it.
//
// When: once per bucket of a synchronised step, in order of the buckets, on every rank, those of weight 0 and a world
// of one too; never in no_sync(). Buckets stay the same through all steps of a DistributedDataParallel. A Reducer
// without plan_order() plans anew after its first step.
//
// Exactness: a hook that gives back the group's own sum gives the bits of a step without a hook, but for numbers that
// the scale makes subnormal, and for parameters of 16 bits, whose sum is rounded before it is divided. A hook must give
// equal bits on all ranks: otherwise the replicas differ.
//
// Cost: a hook needs the step's summed weight before the first bucket leaves. So a synchronised step has one small
// collective more, and on the CPU its first bucket waits until every rank has begun its backward.
//
// On a device the bucket is in device memory, in the order of bucket.group->stream(): a hook puts its kernels there and
// starts collectives, which follow that stream. finish_step makes the stream wait for each Work, and calls
// HookedBucket::finish, which puts its kernels there. The host waits for the device in the first two steps alone, for
// the summed weight. A later step's scale is made of the larger summed weight of two and of three steps before: the
// numbers of a step that weighs more than both are larger by that factor. The mean is divided by the step's own weight.
// Another group's collectives follow that group's stream: set_stream() makes it the same. What comes between two
// collectives of a hook is for GradBucket::side, for in the group's stream backward would wait with it.
//
// Threads: that of backward. Failure: InvalidArgument from the constructor if the hook's name or function is missing;
//   Mismatch, on every rank, from the constructor, where the ranks' hooks have different names. A hook's
//   exception is rethrown as an Error that names step, bucket and hook, with the original nested; failures of a group
//   (PeerLost, Timeout, Mismatch) keep their type. A result of another size or dtype is such an Error too. Both are
//   failures of this rank, sticky in any world. A hook that has not completed within the group's timeout, counted from
//   the end of backward, is a Timeout.
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

// The argument of a hook. Valid during its call; the buffer until the hook's result is taken.
struct GradBucket {
  struct Slice {
    const ParameterSpec& parameter;  // name, dtype, shape
    std::int64_t offset;             // place of its gradient, in elements from the beginning of the buffer
  };
  // The group whose all-reduce the hook replaces. Its collectives must be started in the same order on every rank.
  const std::shared_ptr<ProcessGroup>& group;
  std::int64_t step;  // synchronised steps before this one
  int index;          // the bucket's, from 0
  int buckets;        // the step's number of buckets
  // Flat, on the group's device, in the dtype of its parameters, padded to whole cache lines with zeros. The hook may
  // write it. Holds the sum of this rank's gradients, each times its weight over weight_unit(), over `scale`.
  BufferView buffer;
  std::span<const Slice> slices;  // in the order in which they lie
  // The least power of two that is at least the step's summed weight, over weight_unit(); on a device an earlier
  // step's, see above. Equal on all ranks.
  std::int64_t scale;
  // On a device: a stream of the Reducer's own, in no order with the group's but by events. The group's on the CPU.
  StreamView side;

  bool is_last() const { return index + 1 == buckets; }
};

// The result of a hook.
struct HookedBucket {
  // The collective behind the result, which is read once it is done. Empty: done. A program's own Work has a WorkState
  // whose wait() returns at the deadline; on a device its wait_on() is what is called.
  Work work = {};
  // Called once, on the thread of backward, when the work is done, or on a device when the group's stream waits for it:
  // gives the sum over the ranks, as many elements of the same dtype as the bucket, on the same device, in memory that
  // lives as long as this function does. May start no collective: ranks see a work's end at different times. Without it
  // the sum is in the bucket's buffer.
  std::function<BufferView()> finish = {};
  // The bytes that travel, for the trace. Default: the bucket's.
  std::optional<std::size_t> bytes = {};
};

struct CommHook {
  // The name, compared over the ranks, that tells the format in which gradients travel.
  std::string name = {};
  std::function<HookedBucket(const GradBucket&)> run = {};
};

// The addition of numbers of 16 bits.
enum class HalfSum : std::uint8_t {
  // In float32, in the order of the ranks (ProcessGroup::sums_in_rank_order), and rounded once. On a device, where the
  // group's own all-reduce has another order, by an all-to-all, a sum on each rank and an all-gather: as many bytes,
  // and one collective more.
  in_float32,
  // By the group's own all-reduce. NCCL chooses the order, and rounds to 16 bits at each step of its way; on the CPU it
  // is in_float32.
  backend,
};

struct CompressOptions {
  HalfSum sum = HalfSum::in_float32;
};

// Gradients travel as bfloat16 or float16: half of float32's bytes. Each rank's sum is rounded to 16 bits, the ranks'
// are added as HalfSum says, and the result is rounded to 16 bits once more. A bucket of 16-bit parameters travels as
// it is. float16 keeps three more bits, but only of gradients between 6e-8 and 65504 (over the number of ranks).
LOCKSTEP_API CommHook bf16_compress_hook(const CompressOptions& options = {});
LOCKSTEP_API CommHook fp16_compress_hook(const CompressOptions& options = {});
// Sends nothing, and gives back its input: for measuring a step without communication. The replicas diverge: set
// DdpOptions::compare_every to 0, and discard the results of such a run.
LOCKSTEP_API CommHook noop_hook();

}  // namespace lockstep
