// SPDX-License-Identifier: Apache-2.0
// A CommHook is a program's own exchange of gradients, in place of the group's all-reduce: PyTorch's
// register_comm_hook.
//
//   DistributedDataParallel ddp(model, group, {.comm_hook = bf16_compress_hook()});
//
//   const CommHook plain{"plain", [](const GradBucket& bucket) -> HookedBucket {
//     return {bucket.group->all_reduce(bucket.buffer)};  // in place: the sum over the ranks
//   }};
//
// - A hook turns this rank's sum of a bucket into the sum over the ranks. It must not divide: the Reducer divides by
//   the summed weight. It must give equal bits on all ranks, otherwise the replicas differ.
// - Collective: every rank calls the hook for each bucket of a synchronised step, in the order of the buckets.
// - Threads: the hook runs on the thread of backward.
// - Failure: an exception of the hook is thrown as an Error that names step, bucket and hook, with the original nested;
//   PeerLost, Timeout and Mismatch keep their type. Either is a failure of this rank, sticky in any world.
//
// Why hooks get scaled sums, what they cost, and GPUs: docs/LIBTORCH_REFERENCE.md, "Communication hooks",
// docs/adr/0032-a-hook-exchanges-buckets-the-reducer-divides.md and
// docs/adr/0084-hooks-and-shards-wait-in-streams-on-a-device.md.
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

// The argument of a hook. It is valid during the hook's call, and its buffer until the hook's result is taken.
struct GradBucket {
  struct Slice {
    const ParameterSpec& parameter;  // name, dtype, shape
    std::int64_t offset;             // place of its gradient, in elements from the beginning of the bucket
  };
  // The group whose all-reduce the hook replaces. Every rank starts the group's collectives in the same order. Another
  // group's collectives follow that group's stream: set_stream() makes it this group's.
  const std::shared_ptr<ProcessGroup>& group;
  std::int64_t step;  // synchronised steps before this one
  // The number of this bucket, from 0, and the number of buckets. Buckets are the same in all steps of a
  // DistributedDataParallel; a Reducer without plan_order() plans once more after its first step.
  int index;
  int buckets;
  // This rank's sum: its gradients, each times its weight over weight_unit(), divided by `scale`. Flat, on the group's
  // device, in the dtype of the parameters, padded with zeros to whole cache lines. The hook may write it. On a device
  // its contents are in the order of group->stream(): the hook puts its kernels into that stream and starts
  // collectives, which follow it.
  BufferView buffer;
  std::span<const Slice> slices;  // in the order in which the gradients lie
  // The least power of two that is at least the step's summed weight over weight_unit(). It makes the buffer no larger
  // than gradients of means, so that 16 bits hold it. Equal on all ranks.
  //
  // On a device the first two steps wait on the host for their weight. A later step's scale comes from the larger
  // summed weight of two and of three steps before: if the weight of the step exceeds both, its numbers are larger by
  // that factor. The Reducer divides by the step's own weight all the same.
  std::int64_t scale;
  // On a device a stream of the Reducer's own, which only events order with the group's stream. Kernels between two
  // collectives of a hook belong in it: in the group's stream backward would wait for them. On the CPU the group's
  // stream.
  StreamView side;

  bool is_last() const { return index + 1 == buckets; }
};

// The result of a hook.
struct HookedBucket {
  // The collective that makes the result; the result is read after the collective is done. Empty: the result is there.
  // A program's own Work has a WorkState whose wait() returns at the deadline; on a device the Reducer calls wait_on()
  // instead. A Work that is not done within the group's timeout, counted from the end of backward, is a Timeout.
  Work work = {};
  // The function that gives the sum over the ranks: as many elements of the same dtype as the bucket, on the same
  // device, in memory that lives as long as this function. Another size or dtype is an Error of the hook. Null: the sum
  // is in the bucket's buffer.
  //
  // The Reducer calls it once, on the thread of backward: on the CPU when the work is done, on a device when the
  // group's stream waits for the work; its kernels go into that stream. It may start no collective, because ranks see
  // the end of a work at different times.
  std::function<BufferView()> finish = {};
  // The number of bytes that travel, for the trace. Default: the bucket's.
  std::optional<std::size_t> bytes = {};
};

// The Reducer calls the hook on every rank, also on ranks of weight 0 and with one rank, and never in no_sync(). A step
// with a hook has one small collective more, because the summed weight must be known before the first bucket leaves; on
// the CPU the first bucket waits until every rank has begun its backward.
//
// A hook that returns the group's own sum gives the bits of a step without a hook, except for numbers that the scale
// makes subnormal, and for 16-bit parameters, whose sum is rounded before it is divided.
//
// The constructor of the Reducer throws InvalidArgument if name or function is missing, and Mismatch on every rank if
// the ranks' hooks have different names.
struct CommHook {
  // The name of the format in which gradients travel; the ranks compare it.
  std::string name = {};
  std::function<HookedBucket(const GradBucket&)> run = {};
};

// How numbers of 16 bits are added up over the ranks.
enum class HalfSum : std::uint8_t {
  // In float32, in the order of the ranks (ProcessGroup::sums_in_rank_order), rounded once. On a device, where the
  // group's all-reduce has another order, this takes an all-to-all, a sum on each rank and an all-gather: as many bytes
  // as an all-reduce, and one collective more.
  in_float32,
  // By the group's all-reduce. NCCL chooses the order and rounds to 16 bits at every hop; the CPU does as with
  // in_float32.
  backend,
};

struct CompressOptions {
  HalfSum sum = HalfSum::in_float32;
};

// A hook that sends float32 gradients as bfloat16 or float16: half the bytes. It rounds each rank's sum to 16 bits,
// adds the ranks' sums as HalfSum says, and rounds the result to 16 bits. 16-bit parameters travel as they are. float16
// keeps three more bits, but only of gradients between 6e-8 and 65504 (divided by the number of ranks).
LOCKSTEP_API CommHook bf16_compress_hook(const CompressOptions& options = {});
LOCKSTEP_API CommHook fp16_compress_hook(const CompressOptions& options = {});
// A hook that sends nothing and returns its input, for measuring a step without communication. The replicas diverge:
// set DdpOptions::compare_every to 0, and discard the results of such a run.
LOCKSTEP_API CommHook noop_hook();

}  // namespace lockstep
