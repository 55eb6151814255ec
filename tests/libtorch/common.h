// SPDX-License-Identifier: Apache-2.0
// What tests of lockstep::libtorch share.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/base/random.h"
#include "lockstep/libtorch/distributed_data_parallel.h"
#include "tests/support/error_of.h"
#include "tests/support/rank_threads.h"

namespace lockstep::testing {

using Group = std::shared_ptr<ProcessGroup>;
using Tensors = std::map<std::string, at::Tensor>;

// Ranks as threads, each with one intra-op thread.
inline void run_torch_ranks(int ranks, const RankBody& body, const RankThreadsOptions& options = {}) {
  run_ranks(
      ranks,
      [&](const Group& group) {
        at::set_num_threads(1);
        body(group);
      },
      options);
}

inline Tensors copies_of(const ::torch::OrderedDict<std::string, at::Tensor>& tensors) {
  Tensors result;
  for (const auto& item : tensors) result[item.key()] = item.value().detach().clone();
  return result;
}

inline Tensors weights_of(const ::torch::nn::Module& module) { return copies_of(module.named_parameters()); }

inline Tensors gradients_of(const ::torch::nn::Module& module) {
  Tensors result;
  for (const auto& item : module.named_parameters()) {
    if (item.value().grad().defined()) result[item.key()] = item.value().grad().clone();
  }
  return result;
}

inline bool same_bits(const Tensors& a, const Tensors& b) {
  return a.size() == b.size() &&
         std::all_of(a.begin(), a.end(), [&](const auto& item) { return at::equal(item.second, b.at(item.first)); });
}

// Per tensor: max |seen - wanted| <= tolerance max |wanted|.
inline void expect_close(const Tensors& seen, const Tensors& wanted, const std::string& what, double tolerance = 1e-5) {
  ASSERT_EQ(seen.size(), wanted.size()) << what;
  for (const auto& [name, values] : wanted) {
    ASSERT_EQ(seen.count(name), 1u) << what << ": " << name;
    const double largest = values.abs().max().item<double>();
    const double apart = (seen.at(name) - values).abs().max().item<double>();
    EXPECT_GT(largest, 0) << what << ": " << name << " is zero everywhere, which proves nothing";
    EXPECT_LE(apart, tolerance * largest) << what << ": " << name;  // false for NaN
  }
}

// Row boundaries of a random partition over the ranks; some may get none.
inline std::vector<std::int64_t> random_cuts(Generator& random, std::int64_t rows, int ranks) {
  std::vector<std::int64_t> cuts{0, rows};
  for (int i = 1; i < ranks; ++i)
    cuts.push_back(static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(rows) + 1)));
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

// Parameters that depend on nothing but the seed: torch's generator is one for all threads.
inline void initialize(const ::torch::nn::Module& module, std::uint64_t seed) {
  const at::NoGradGuard no_grad;
  Generator random(seed);
  for (const auto& item : module.named_parameters()) {
    at::Tensor values = at::empty_like(item.value(), at::MemoryFormat::Contiguous);
    const double scale = item.value().dim() > 1 ? 0.7 / std::sqrt(static_cast<double>(item.value().size(-1))) : 0.3;
    const bool is_gain = item.value().dim() == 1 && item.key().find("weight") != std::string::npos;
    for (std::int64_t i = 0; i < values.numel(); ++i) {
      values.view(-1)[i] = (is_gain ? 1.0 : 0.0) + scale * static_cast<double>(random.normal());
    }
    item.value().copy_(values);
  }
}

inline at::Tensor random_tensor(at::IntArrayRef shape, std::uint64_t seed) {
  Generator random(seed);
  at::Tensor result = at::empty(shape);
  float* data = result.data_ptr<float>();
  for (std::int64_t i = 0; i < result.numel(); ++i) data[i] = random.normal();
  return result;
}

inline at::Tensor random_classes(at::IntArrayRef shape, std::int64_t classes, std::uint64_t seed) {
  Generator random(seed);
  at::Tensor result = at::empty(shape, at::kLong);
  auto* data = result.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < result.numel(); ++i) {
    data[i] = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(classes)));
  }
  return result;
}

// What `object` saves in a file of torch's.
template <typename Object>
std::string archive_of(const Object& object) {
  ::torch::serialize::OutputArchive archive;
  object.save(archive);
  std::stringstream file;
  archive.save_to(file);
  return file.str();
}
template <typename Object>
void load_archive(Object& object, const std::string& bytes) {
  std::stringstream file(bytes);
  ::torch::serialize::InputArchive archive;
  archive.load_from(file);
  object.load(archive);
}

}  // namespace lockstep::testing
