// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/libtorch_ddp/c10d_peer.h"

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <algorithm>
#include <list>

namespace lockstep::benchmark {
namespace {

constexpr std::int64_t kBucketBytes = 25 << 20;  // as in Python's DDP

struct Bucket {
  std::int64_t elements = 0;
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> views;  // one for each parameter, of `flat`
  std::vector<at::Tensor> flat;   // one: the gradients
  std::size_t left = 0;           // gradients that this backward has not made yet
  c10::intrusive_ptr<c10d::Work> work;
};

// The hook of a bucket's last gradient starts its all-reduce, in the group's own stream. Gradients must be set to none
// before a step, and each parameter must be used in it.
class ByHand : public C10dPeer {
 public:
  ByHand(std::shared_ptr<Model> model, c10::intrusive_ptr<c10d::ProcessGroupNCCL> group)
      : model_(std::move(model)), group_(std::move(group)) {
    mean_.reduceOp = c10d::ReduceOp::AVG;
    std::vector<at::Tensor> parameters = model_->parameters();
    std::reverse(parameters.begin(), parameters.end());  // nearly backward's order
    for (const at::Tensor& parameter : parameters) {
      std::vector<at::Tensor> weights{parameter.detach()};
      group_->broadcast(weights)->wait();
      const std::int64_t room = kBucketBytes / parameter.element_size() - parameter.numel();
      if (buckets_.empty() || buckets_.back().elements > room) buckets_.emplace_back();
      buckets_.back().elements += parameter.numel();
      buckets_.back().parameters.push_back(parameter);
    }
    for (Bucket& bucket : buckets_) watch(bucket);
  }

  at::Tensor forward(const at::Tensor& x) override { return model_->forward(x); }

  void after_backward() override {
    for (Bucket& bucket : buckets_) {
      bucket.work->wait();  // the current stream waits, and not the host
      bucket.left = bucket.parameters.size();
      for (std::size_t i = 0; i < bucket.left; ++i) bucket.parameters[i].mutable_grad() = bucket.views[i];
    }
  }

 private:
  void watch(Bucket& bucket) {
    bucket.flat = {at::empty({bucket.elements}, bucket.parameters.front().options())};
    bucket.left = bucket.parameters.size();
    bucket.views = at::unflatten_dense_tensors(bucket.flat.front(), bucket.parameters);
    for (std::size_t i = 0; i < bucket.left; ++i) {
      bucket.parameters[i].register_hook([this, &bucket, view = bucket.views[i]](const at::Tensor& gradient) {
        view.copy_(gradient);
        if (--bucket.left == 0) bucket.work = group_->allreduce(bucket.flat, mean_);
      });
    }
  }

  std::shared_ptr<Model> model_;
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> group_;
  c10d::AllreduceOptions mean_;
  std::list<Bucket> buckets_;
};

}  // namespace

std::unique_ptr<C10dPeer> make_c10d_peer(const std::shared_ptr<Model>& model, const std::string& file, int rank,
                                         int world) {
  if (!model->parameters().front().is_cuda()) return nullptr;
  auto store = c10::make_intrusive<c10d::FileStore>(file, world);
  return std::make_unique<ByHand>(model, c10::make_intrusive<c10d::ProcessGroupNCCL>(std::move(store), rank, world));
}

}  // namespace lockstep::benchmark
