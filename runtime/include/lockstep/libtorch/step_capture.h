// SPDX-License-Identifier: Apache-2.0
// StepCapture is the part of CapturedStep in lockstep's library, without the types of module and graph.
//
// The sources of StepCapture never see CudaGraph (captured_step.h): a compiler that sees a final class calls its
// functions directly, and the library would then need libtorch_cuda.so.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/libtorch/replica.h"

namespace lockstep::libtorch {

// StepGraph is a recording of a device's work, which one call puts into a stream again. A derived class also has a
// static std::string why_not(DeviceId), which returns the reason why the class can't capture on a device, or an
// empty text.
class LOCKSTEP_API StepGraph {
 public:
  virtual ~StepGraph() = default;
  // Records the work that `body` puts into the current stream, which is not the default stream; none of the work
  // runs. The caller calls capture() once. Throws what `body` throws. `body` may be called again during the lifetime
  // of this object.
  virtual void capture(std::function<void()> body) = 0;
  // Puts the recorded work into the current stream.
  virtual void replay() = 0;
};

struct CapturedStepOptions {
  // The number of eager steps of a kind of input before a step of that kind is captured. Numbers below 1 count as 1,
  // because the first step makes the optimizer's state and the buckets.
  int warm_up = 3;
};

// StepCapture is CapturedStep's implementation.
class LOCKSTEP_API StepCapture {
 public:
  using LossOf = std::function<at::Tensor(const std::vector<at::Tensor>&)>;
  using MakeGraph = std::function<std::unique_ptr<StepGraph>()>;

  // Makes the capture. `why_not` is the reason why nothing can be captured; empty if steps can be captured.
  StepCapture(Replica& replica, ::torch::optim::Optimizer& optimizer, std::string why_not, MakeGraph make_graph,
              CapturedStepOptions options);
  at::Tensor run(const std::vector<at::Tensor>& inputs, const LossOf& loss_of);
  void set_weight(std::int64_t weight) { weight_ = weight; }
  bool was_replayed() const { return was_replayed_; }

 private:
  struct Kind {
    int eager_steps = 0;
    std::optional<std::int64_t> rows = std::nullopt;  // the rows of ddp's first tensor
  };
  // Returns the reason why a step on these inputs can't be replayed; empty if the step can be replayed.
  std::string why_eager(const std::vector<at::Tensor>& inputs, const std::string& kind) const;
  void clear_gradients();
  at::Tensor step_eagerly(const std::vector<at::Tensor>& inputs, const LossOf& loss_of, Kind& kind);
  at::Tensor replay(const std::vector<at::Tensor>& inputs, const LossOf& loss_of, const Kind& kind);
  // Computes the part of a step that is captured: the loss and its backward. The call begins no step and sends nothing.
  // The call leaves the gradients in the arena, weighted by a number on the device; with a single rank the gradients
  // stay where autograd puts them.
  at::Tensor compute(const LossOf& loss_of);

  Replica& replica_;
  std::shared_ptr<ReplicaEngine> engine_;
  ::torch::optim::Optimizer& optimizer_;
  std::string why_not_;
  MakeGraph make_graph_;
  CapturedStepOptions options_;
  std::optional<c10::Stream> stream_;   // the stream of the steps, on a device
  std::map<std::string, Kind> kinds_;   // the kinds by description of the inputs
  std::set<std::string> told_;          // the reasons that were logged
  std::optional<std::int64_t> weight_;  // the next step's weight
  bool was_replayed_ = false;
  std::unique_ptr<StepGraph> graph_;  // the captured forward and backward
  std::string captured_kind_;
  std::vector<at::Tensor> inputs_;     // the graph's inputs
  at::Tensor loss_;                    // the graph's loss
  std::vector<at::Tensor> gradients_;  // the graph's gradients by parameter; undefined: no gradient
};

}  // namespace lockstep::libtorch
