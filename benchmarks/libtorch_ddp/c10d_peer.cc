// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/libtorch_ddp/c10d_peer.h"

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <algorithm>
#include <cstdlib>
#include <limits>

namespace lockstep::benchmark {
namespace {

class Gloo : public C10dPeer {
 public:
  Gloo(std::shared_ptr<Model> model, const std::string& file, int rank, int world) : model_(std::move(model)) {
    auto options = c10d::ProcessGroupGloo::Options::create();
    const char* const interface = std::getenv("GLOO_SOCKET_IFNAME");  // Python's wrapper reads it
    options->devices.push_back(interface != nullptr ? c10d::ProcessGroupGloo::createDeviceForInterface(interface)
                                                    : c10d::ProcessGroupGloo::createDefaultDevice());
    group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(c10::make_intrusive<c10d::FileStore>(file, world), rank, world,
                                                         options);
    const std::vector<at::Tensor> parameters = model_->parameters();
    const std::vector<bool> sparse(parameters.size(), false);
    // Python's: one bucket for the first step, then 1 MiB and 25 MiB in the order seen.
    auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(
        parameters, {static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max())}, sparse);
    std::reverse(buckets.begin(), buckets.end());
    std::reverse(limits.begin(), limits.end());
    std::unordered_map<std::size_t, std::string> names;
    for (const auto& item : model_->named_parameters()) names.emplace(names.size(), item.key());
    reducer_ = std::make_shared<c10d::Reducer>(
        parameters, buckets, limits, group_, sparse, c10d::kDefaultBucketBytesCap, /*find_unused_parameters=*/false,
        /*gradient_as_bucket_view=*/false, names, c10d::kDefaultFirstBucketBytes);
  }

  at::Tensor forward(const at::Tensor& x) override {
    reducer_->prepare_for_forward();
    reducer_->rebuild_buckets();
    at::Tensor output = model_->forward(x);
    reducer_->prepare_for_backward({});
    return output;
  }

 private:
  std::shared_ptr<Model> model_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::shared_ptr<c10d::Reducer> reducer_;
};

}  // namespace

std::unique_ptr<C10dPeer> make_c10d_peer(const std::shared_ptr<Model>& model, const std::string& file, int rank,
                                         int world) {
  return std::make_unique<Gloo>(model, file, rank, world);
}

}  // namespace lockstep::benchmark
