// SPDX-License-Identifier: Apache-2.0
// What tests of samplers and of the loader over them share.
#pragma once

#include <sstream>

#include "lockstep/libtorch/data_loader.h"
#include "lockstep/libtorch/samplers.h"
#include "tests/libtorch/common.h"

namespace lockstep::testing {

using data::EpochOrder;
using data::SamplerState;
using libtorch::DistributedSampler;
using libtorch::GlobalBatchSampler;
using libtorch::RankSampler;
using libtorch::Uneven;
using Samples = std::vector<std::int64_t>;
inline const std::uint64_t kShuffled = EpochOrder::shuffled(1, 0).digest();

inline Samples all_of(RankSampler& sampler, std::size_t batch_size) {
  Samples seen;
  while (const auto batch = sampler.next(batch_size)) {
    EXPECT_GT(batch->size(), 0u);
    seen.insert(seen.end(), batch->begin(), batch->end());
  }
  return seen;
}

inline Samples epoch_of(RankSampler sampler, std::int64_t epoch, std::size_t batch_size = 2) {
  sampler.set_epoch(epoch);
  sampler.reset();
  return all_of(sampler, batch_size);
}

inline auto numbers(std::int64_t length) {
  return ::torch::data::datasets::TensorDataset(at::arange(length))
      .map(::torch::data::transforms::Stack<::torch::data::TensorExample>());
}

// What a loader returns in an epoch, `most` batches at most.
template <typename Loader>
Samples take(Loader& loader, std::size_t most = 100) {
  Samples seen;
  std::size_t batches = 0;
  for (auto& batch : loader) {
    for (std::int64_t i = 0; i < batch.data.size(0); ++i) seen.push_back(batch.data[i].template item<std::int64_t>());
    if (++batches == most) break;
  }
  return seen;
}

inline std::string saved(const RankSampler& sampler) {
  std::stringstream file;
  ::torch::serialize::OutputArchive out;
  sampler.save(out);
  out.save_to(file);
  return file.str();
}

inline void load(RankSampler& sampler, const std::string& bytes) {
  std::stringstream file(bytes);
  ::torch::serialize::InputArchive in;
  in.load_from(file);
  sampler.load(in);
}

}  // namespace lockstep::testing
