// SPDX-License-Identifier: Apache-2.0
#include "runtime/train/sharded_parameters.h"

#include "runtime/comm/collective_call.h"
#include "runtime/tensor/tensor_internals.h"
#include "runtime/train/compute_stream.h"

namespace lockstep {
namespace {

Tensor elements(const Tensor& whole, std::int64_t begin, std::int64_t end) {
  return whole.view_as({whole.count()}).view_rows(begin, end);
}

}  // namespace

ShardedParameters::ShardedParameters(Reducer& reducer, ProcessGroup& group, const std::vector<Tensor>& parameters,
                                     const std::unordered_map<const void*, int>& index)
    : reducer_(reducer), group_(group), parameters_(parameters), index_(index), shards_(parameters.size()) {
  // A bucket's part has a parameter's elements in one piece.
  for (const ParameterShard& shard : reducer_.shards(group_.rank())) {
    shards_[static_cast<std::size_t>(shard.parameter)] = shard;
  }
  for (const Tensor& parameter : parameters_) TensorInternals(parameter).set_sharded_update(this);
}

ShardedParameters::~ShardedParameters() {
  for (const Tensor& parameter : parameters_) TensorInternals(parameter).set_sharded_update(nullptr);
}

ShardedUpdate::Range ShardedParameters::shard(const Tensor& parameter) const {
  const ParameterShard& shard = shards_[static_cast<std::size_t>(index_.at(parameter.id()))];
  return {shard.begin, shard.end};
}

void ShardedParameters::run(const std::function<void(const Tensor& parameter)>& update) {
  join_compute_stream(group_);
  // In the gradients' memory, where the weights of all ranks come together: not grad_for_writing(), for a parameter
  // without a gradient is not to get one.
  const auto travelling = [&](std::size_t i) {
    const Tensor& parameter = parameters_[i];
    float* const data = reducer_.gradient<float>(static_cast<int>(i));
    return Tensor::borrow({data, parameter.count(), DType::f32, parameter.device()}, {parameter.count()});
  };
  reducer_.update_shards([&](const ParameterShard& shard) {
    const auto i = static_cast<std::size_t>(shard.parameter);
    update(parameters_[i]);
    travelling(i).view_rows(shard.begin, shard.end).copy_from(elements(parameters_[i], shard.begin, shard.end));
  });
  holds_ = Holds::weights;
  // What the others have updated, before this rank's shard and behind it: two writes of each parameter, on every rank.
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    const ParameterShard& own = shards_[i];
    if (own.begin == own.end) update(parameters_[i]);
    const Tensor all = travelling(i);
    elements(parameters_[i], 0, own.begin).copy_from(all.view_rows(0, own.begin));
    elements(parameters_[i], own.end, all.count()).copy_from(all.view_rows(own.end, all.count()));
  }
}

void ShardedParameters::sum(const BufferView& values) {
  join_compute_stream(group_);
  comm::within_call("grad_norm", [&] { group_.all_reduce(values).wait_on(group_.stream()); });
}

}  // namespace lockstep
