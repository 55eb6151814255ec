// SPDX-License-Identifier: Apache-2.0
#include "runtime/tensor/sharded_update.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep {

Tensor ShardedUpdate::shard_of(const Tensor& parameter, const Tensor& whole) const {
  const Range own = shard(parameter);
  return whole.view_as({whole.count()}).view_rows(own.begin, own.end);
}

void ShardedUpdate::require_shards(const char* operation) const {
  if (holds_ == Holds::shards) return;
  throw InvalidArgument(fmt::format(
      "{}: with Shard::optimizer, call this once after a synchronised backward, and before zero_grad(); now the "
      "gradients' memory has {}",
      operation,
      holds_ == Holds::weights ? "the weights of the optimizer's last step"
                               : "this rank's own gradients, of micro-batches that no backward has closed"));
}

void ShardedUpdate::claim(const void* optimizer) {
  if (optimizer_ != nullptr) {
    throw InvalidArgument(
        "optimizer: another optimizer updates parameters of this DistributedDataParallel, which has Shard::optimizer; "
        "give one optimizer all parameters, with a ParameterGroup for each setting, or destroy the other optimizer "
        "first");
  }
  optimizer_ = optimizer;
}

}  // namespace lockstep
