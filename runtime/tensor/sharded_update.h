// SPDX-License-Identifier: Apache-2.0
// The update of parameters of which each rank updates its shard (DdpOptions::shard), as optimizers and clipping see it.
//
// A parameter leads to it: Tensor::sharded_update(). DistributedDataParallel has the implementation, over its Reducer
// (train/sharded_parameters.h). An optimizer over such parameters has the state of this rank's shards alone, and run()
// gives every rank the weights that each has updated.
//
// Threads: one, that of the training. Failure: of the group, in run() and sum().
#pragma once

#include <cstdint>
#include <functional>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

class ShardedUpdate {
 public:
  // The contents of the gradients' memory.
  enum class Holds : std::uint8_t {
    gradients,  // this rank's own, whole: before the ranks have summed them
    shards,     // the sum over the ranks in this rank's shards; elsewhere nothing of use
    weights,    // the updated weights, after run()
  };

  ShardedUpdate() = default;
  virtual ~ShardedUpdate() = default;
  ShardedUpdate(const ShardedUpdate&) = delete;
  ShardedUpdate& operator=(const ShardedUpdate&) = delete;

  // Elements [begin, end) of a parameter, in the order of its memory; perhaps none.
  struct Range {
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };
  // This rank's.
  virtual Range shard(const Tensor& parameter) const = 0;
  // A flat view of that shard in `whole`, which is the parameter or as large.
  Tensor shard_of(const Tensor& parameter, const Tensor& whole) const;
  // Collective. Calls `update` once for each parameter, to write its shard, also of 0 elements; every rank has the
  // weights of all shards when this returns. It counts as many writes of a parameter on every rank (Tensor::version()),
  // beside those that `update` counts.
  virtual void run(const std::function<void(const Tensor& parameter)>& update) = 0;
  // Collective. Sums `values`, on the parameters' device, over the ranks, in place.
  virtual void sum(const BufferView& values) = 0;

  Holds holds() const { return holds_; }
  // InvalidArgument, with `operation` in front, unless holds() is shards.
  void require_shards(const char* operation) const;

  // The optimizer that has the state of the shards, until release(): `optimizer` from now on. InvalidArgument if there
  // is one already.
  void claim(const void* optimizer);
  void release() { optimizer_ = nullptr; }
  bool is_claimed_by(const void* optimizer) const { return optimizer_ == optimizer; }

 protected:
  Holds holds_ = Holds::gradients;

 private:
  const void* optimizer_ = nullptr;
};

}  // namespace lockstep
