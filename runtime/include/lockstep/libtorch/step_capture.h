// SPDX-License-Identifier: Apache-2.0
// StepCapture implements, in lockstep's library, the part of CapturedStep that does not depend on the type of the
// program's module or on the class that derives from StepGraph.
//
// The sources of StepCapture must not include the definition of the final class CudaGraph (captured_step.h). If the
// compiler saw CudaGraph, it would call CudaGraph's functions directly, and lockstep's library would
// need libtorch_cuda.so.
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

// StepGraph is a recording of a device's work; each call of replay() puts the recorded work into a stream again. A
// derived class must also have a static function std::string why_not(DeviceId), which returns the reason why the class
// can't record work of this device. The text of why_not() is empty if the class can record work of the device.
class LOCKSTEP_API StepGraph {
 public:
  virtual ~StepGraph() = default;
  // Records the work that `body` puts into the current stream, without running the work. During capture() the current
  // stream must not be the default stream. The caller calls capture() once. Throws what `body` throws. A StepGraph may
  // call `body` again at any time until the StepGraph is destroyed.
  virtual void capture(std::function<void()> body) = 0;
  // Puts the recorded work into the current stream, where the work runs.
  virtual void replay() = 0;
};

struct CapturedStepOptions {
  // The number of steps that run eagerly, for each kind of input (dtypes, shapes and devices), before a step is
  // captured. A warm_up below 1 counts as 1, because the first step must create the optimizer's state and the buckets
  // of gradients.
  int warm_up = 3;
};

// StepCapture is CapturedStep's implementation.
class LOCKSTEP_API StepCapture {
 public:
  using LossOf = std::function<at::Tensor(const std::vector<at::Tensor>&)>;
  using MakeGraph = std::function<std::unique_ptr<StepGraph>()>;

  // Makes the capture. `why_not` is the reason why steps can't be captured; an empty `why_not` means that steps can
  // be captured.
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
  // Returns the reason why a step on `inputs` can't be replayed, or an empty text if the step can be replayed.
  std::string why_eager(const std::vector<at::Tensor>& inputs, const std::string& kind) const;
  void clear_gradients();
  at::Tensor step_eagerly(const std::vector<at::Tensor>& inputs, const LossOf& loss_of, Kind& kind);
  at::Tensor replay(const std::vector<at::Tensor>& inputs, const LossOf& loss_of, const Kind& kind);
  // Computes the captured part of a step: the loss and the backward of the loss. The call does not begin a step of the
  // DistributedDataParallel, and sends nothing to other ranks. After compute() the gradients are in the Reducer's
  // arena, already multiplied by this rank's weight, which is stored in the device's memory. With a single rank the
  // gradients stay in the memory where autograd puts them.
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
