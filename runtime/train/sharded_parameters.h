// SPDX-License-Identifier: Apache-2.0
// The parameters of a DistributedDataParallel with Shard::optimizer, over its Reducer.
#pragma once

#include <functional>
#include <unordered_map>
#include <vector>

#include "lockstep/ddp/reducer.h"
#include "runtime/tensor/sharded_update.h"

namespace lockstep {

class ShardedParameters final : public ShardedUpdate {
 public:
  // All outlive this object. `index`: of each parameter, by Tensor::id, which is also the Reducer's.
  ShardedParameters(Reducer& reducer, ProcessGroup& group, const std::vector<Tensor>& parameters,
                    const std::unordered_map<const void*, int>& index);
  ~ShardedParameters() override;

  void hold(Holds what) { holds_ = what; }
  Range shard(const Tensor& parameter) const override;
  void run(const std::function<void(const Tensor& parameter)>& update) override;
  void sum(const BufferView& values) override;

 private:
  Reducer& reducer_;
  ProcessGroup& group_;
  const std::vector<Tensor>& parameters_;
  const std::unordered_map<const void*, int>& index_;
  std::vector<ParameterShard> shards_;  // this rank's, by parameter; [0, 0) where it has none
};

}  // namespace lockstep
