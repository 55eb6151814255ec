// SPDX-License-Identifier: Apache-2.0
// MicroBatchBuffers gives the buffers of a module the same bits at any number of ranks, where a step has fixed
// micro-batches (ddp/reproducible.h).
//
// Each micro-batch begins with the values that the buffers had before the step. After the step, the running statistics
// of a batch norm are the mean of what the micro-batches have left in them: `running_mean` weighted by the n values of
// a channel that the micro-batch normalised, `running_var` by n - 1, and `num_batches_tracked` by n. The sums travel as
// companions of the gradients (ReducerOptions::companions), in the tree of the micro-batches.
//
// Buffers that are not running statistics of a batch norm are combined by WrittenBuffers.
//
// A batch norm is recognised by its calls of torch's operators, which are observed (ATen/record_function.h) on the
// thread that runs the micro-batch. So it may belong to any class, also to a ScriptModule. A batch norm that trains in
// the micro-batch of another module is refused, because its statistics would be those of this rank's rows.
//
// Threads: one at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/ddp/bucket_plan.h"
#include "runtime/libtorch/module_state.h"
#include "runtime/libtorch/written_buffers.h"

namespace lockstep::libtorch {

class MicroBatchBuffers {
 public:
  // Without fixed micro-batches all functions do nothing.
  MicroBatchBuffers(const ::torch::nn::Module& module, const DdpOptions& options);

  // The specs of the sums. The Reducer has them as its companions.
  std::vector<ParameterSpec> specs() const;

  // A step, from its begin to its end on one thread. Its destructor puts the buffers back to the values before the
  // step, unless finish_step() has been called.
  class Step {
   public:
    explicit Step(MicroBatchBuffers& buffers);
    ~Step();
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;
    // Observes the calls of batch norms from here to rest(): around a forward only, since observing costs time in each
    // operator.
    void observe();
    void rest();

   private:
    MicroBatchBuffers& buffers_;
    MicroBatchBuffers* outer_;
    std::optional<std::uint64_t> observer_;
  };

  // A micro-batch begins, with the buffers of the step.
  void begin_micro_batch();
  // Resets the buffers to their values before the step, so that the step can be computed again. Call begin_again()
  // after finish_step().
  void begin_again();
  // While an Again lives after finish_step(), micro-batches may be computed again without counting. The destructor of
  // Again restores the values that finish_step() gave the buffers.
  class Again {
   public:
    explicit Again(MicroBatchBuffers& buffers);
    ~Again();
    Again(const Again&) = delete;
    Again& operator=(const Again&) = delete;

   private:
    MicroBatchBuffers& buffers_;
    std::vector<at::Tensor> tensors_, values_;
  };
  // After its forward. InvalidArgument if a batch norm of another module trained, or if running statistics were written
  // by something else than a batch norm.
  void refuse_other_writes(std::int64_t step) const;
  // After its backward: writes what a micro-batch of `rows` rows adds to the sums to `views`, which are in the order of
  // specs().
  void add_to(std::span<at::Tensor> views, std::int64_t rows);
  // After the step's last micro-batch: `views` hold the sums of all ranks, all divided by one number. Collective and
  // blocking if a micro-batch wrote a buffer that is not a batch norm's. Returns the text of an error that all ranks
  // have, or nothing.
  std::string finish_step(std::span<const at::Tensor> views, ProcessGroup& group);

 private:
  // A buffer of a batch norm.
  struct Statistic {
    std::string name;
    at::Tensor tensor;
    at::Tensor before = {};    // its values before the step
    std::uint64_t writes = 0;  // before the micro-batch; batch_norm itself does not count
  };
  // A batch norm, and what it did in this micro-batch.
  struct Norm {
    Statistic mean, var;
    std::optional<Statistic> count;
    int calls = 0;
    std::int64_t values = 0;   // the number of values of a channel that it normalised
    std::int64_t degrees = 0;  // `values` less one for each call

    std::vector<const Statistic*> statistics() const;
    std::vector<Statistic*> statistics();
  };
  struct Observed;

  void restore();
  void saw(const at::Tensor& running_mean, const at::Tensor& running_var, std::int64_t values);

  Reproducible reproducible_;
  std::vector<Norm> norms_;
  WrittenBuffers others_;
  std::vector<bool> written_on_device_;  // which of others_ the first step wrote, on a device; else empty
  bool is_begun_ = false;                // the buffers differ from the step's
  int depth_ = 0;                        // how many operators of norms are now within each other
  bool saw_another_module_ = false;      // a batch norm of another module has trained in this micro-batch
};

}  // namespace lockstep::libtorch
