// SPDX-License-Identifier: Apache-2.0
// DistributedDataParallel trains a model of lockstep's own engine with replicas that stay equal on all ranks, bit
// by bit.
//
//   DistributedDataParallel ddp(model, group);          // all ranks get rank 0's weights
//   for (const auto& [x, y, ids] : loader) {
//     ddp.backward(cross_entropy(ddp(x, ids), y));      // all-reduces run while backward computes
//     optimizer.step();                                 // gradients are the mean over the global batch
//     optimizer.zero_grad();
//   }
//
// - Collective: the constructor and every synchronised backward() are collective, and called in one order on all ranks.
//   A rank without rows calls ddp(x) and backward() with 0 rows, or step_without_data().
// - Threads: the object belongs to one thread.
// - Failure: a call throws the group's errors (PeerLost, Timeout, Mismatch); every later call throws the first error
//   again. An exception that leaves backward(), or a forward between micro-batches, fails the group on every rank, with
//   the exception's text. The program may catch an exception of another forward. A group of one rank forgets the step
//   and continues.
//
// docs/ENGINE.md is the guide, docs/GPUS.md says where the host waits for a GPU, and docs/LIBTORCH.md, "lockstep's own
// tensors", lists the differences to lockstep::libtorch::DistributedDataParallel. docs/adr/0079-one-trainer.md has
// the reasons.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/autograd/graph.h"
#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/stop.h"
#include "lockstep/data/tensor/batch.h"
#include "lockstep/ddp/data_identity.h"
#include "lockstep/ddp/global_batch.h"
#include "lockstep/ddp/no_sync.h"
#include "lockstep/ddp/reducer.h"
#include "lockstep/ddp/replica_check.h"
#include "lockstep/ddp/reproducible.h"
#include "lockstep/ddp/watched_loader.h"
#include "lockstep/nn/module.h"

namespace lockstep {

class ShardedParameters;
class Snapshots;
class Trainer;

// DdpOptions holds the settings of DistributedDataParallel, which are equal on all ranks.
// lockstep::libtorch::DdpOptions has these members and further members.
struct DdpOptions {
  // The sizes of the buckets.
  BucketOptions buckets = {};
  // The way in which the loss combines its terms: Loss::mean or Loss::sum. The library can't see which kind a loss is;
  // a wrong setting makes gradients wrong by a factor. Both settings are exact for any partition of the batch.
  Loss loss = Loss::mean;
  // The dotted names of parameters on which no rank's loss depends: no bucket waits for these parameters. The library
  // finds undeclared unused parameters at the end of each backward.
  std::vector<std::string> unused = {};
  // If true, buckets leave during backward; if false, buckets leave at the end of backward.
  bool overlap = true;
  // The number of steps between two comparisons of a digest of the parameters over the ranks; the default is 100, and 0
  // turns these comparisons off. In every step the ranks also compare how often their parameters were written
  // (Tensor::version()), and compare the parameters if these numbers differ: ddp/equality/divergence_check.h.
  std::optional<std::int64_t> compare_every = std::nullopt;
  // The exchange of gradients that replaces the group's all-reduce, see ddp/comm_hook.h. The hook's name is equal on
  // all ranks.
  CommHook comm_hook = {};
  // The reaction to NaN and infinity in this rank's own gradients, see ddp/not_finite.h.
  NotFinite not_finite = NotFinite::tell;
  // The settings for equal bits at any number of ranks (ddp/reproducible.h). With these settings each step is a
  // backward(rows, loss_of), and the constructor sets intra_op_threads() to Reproducible::threads.
  Reproducible reproducible = {};
  // The state that ranks divide among themselves. With Shard::optimizer each rank keeps the optimizer's state of its
  // shard, updates the shard's weights, and receives the other weights from the other ranks: docs/SHARDING.md. On the
  // CPU the weights have the same bits as without shards. An optimizer of parameters() that is made after this object
  // needs no setting. With a single rank Shard::optimizer changes nothing. The constructor throws InvalidArgument with
  // a comm_hook, and for parameters of another DistributedDataParallel.
  Shard shard = Shard::none;
  // The seed of all randomness in a forward, such as dropout.
  std::uint64_t seed = 0;
};

class LOCKSTEP_API DistributedDataParallel {
 public:
  // Compares the parameters' names, shapes and dtypes over the ranks, then broadcasts rank 0's values. The constructor
  // is collective. `model` outlives this object. If parameters differ, every rank throws Mismatch, which names the
  // first parameter that differs. Throws InvalidArgument if the model has no parameters, or if a parameter is not on
  // the group's device.
  DistributedDataParallel(nn::Module& model, std::shared_ptr<ProcessGroup> group, const DdpOptions& options = {});
  // Drops the gradients in the Reducer's arena: later gradients of the parameters have their own memory.
  ~DistributedDataParallel();
  DistributedDataParallel(const DistributedDataParallel&) = delete;
  DistributedDataParallel& operator=(const DistributedDataParallel&) = delete;

  // Runs the model's forward on this rank's rows (dimension 0 of x), without sample ids. A random layer throws
  // InvalidArgument, because it needs ids, unless x has no rows or the program sets the model's context itself.
  Tensor operator()(const Tensor& x);
  // Runs the model's forward with the rows' global sample ids. Random layers draw from (seed, step, id), so dropout
  // zeroes the same elements of a sample at every number of ranks. Throws InvalidArgument unless `ids` has one id
  // per row.
  Tensor operator()(const Tensor& x, std::vector<std::int64_t> ids);

  // forward() is operator(); train() and eval() call the model's functions. So code for a model also works with
  // this object.
  Tensor forward(const Tensor& x) { return (*this)(x); }
  Tensor forward(const Tensor& x, std::vector<std::int64_t> ids) { return (*this)(x, std::move(ids)); }
  void train(bool on = true) { module_.train(on); }
  void eval() { module_.eval(); }

  // Sets this rank's weight for the next backward: the number of terms (tokens that count, say) of which its loss is
  // the mean. Without set_weight() the weight is the number of rows. Throws InvalidArgument if `weight` is negative.
  //
  // - A call between forward and backward sets the weight until the next forward.
  // - A call before the first forward since the last backward sets the weight of all forwards until the next backward.
  //   With fixed micro-batches backward() refuses such a weight: call set_weight() in each loss_of.
  void set_weight(std::integral auto weight) { set_weight_to(static_cast<std::int64_t>(weight)); }
  void set_weight(std::floating_point auto weight) =
      delete;  // 0.5 would become 0: give all ranks' weights in smaller units

  // Returns a NoSync: while the NoSync lives and is_on is true, backward() sends nothing. Gradients are then this
  // rank's weighted sum so far, which the program must leave alone until a synchronised backward() ends the step. Do
  // not divide the loss by the number of micro-batches.
  NoSync no_sync(bool is_on = true);

  // Runs the backward of the loss while collectives average its gradients. Afterwards every parameter's gradient is the
  // mean (or the sum, see DdpOptions::loss) over the global batch, equal on all ranks; 0 if no rank's loss depends on
  // the parameter. backward() adds to a gradient that zero_grad() has not cleared, so two losses of a step may each
  // have a forward and a backward. Returns last_weight(), on a GPU nullopt. lockstep::backward(loss) calls this
  // function for a loss of this object.
  //
  // Gradients lie in the Reducer's arena: backward writes gradients into the memory that the collectives read, without
  // a copy. The buckets follow the order of the first backward.
  //
  // With DdpOptions::shard each rank has only its shard of the gradients after backward(), and a backward() that adds
  // to gradients throws InvalidArgument.
  //
  // Throws InvalidArgument if the loss is not a single number, or depends on no parameter. Throws InvalidArgument if no
  // forward went through this object since the last backward(). Throws InvalidArgument if the forward was in no_sync()
  // for the first micro-batch of a step and gradients are not cleared.
  //
  // A synchronised backward() throws Mismatch if the replicas have become unequal, as after an optimizer's step that
  // one rank left out; the Mismatch names the steps, the ranks and the first parameter. Any other exception that leaves
  // backward() fails the group on every rank at once, with the exception's text.
  std::optional<std::int64_t> backward(const Tensor& loss);
  // Runs a step of this rank's rows, which may be none. `loss_of(begin, end)` makes the loss of rows [begin, end), with
  // a forward through this object. backward() calls loss_of once for each of this rank's fixed micro-batches that has
  // rows (ddp/reproducible.h), or, without fixed micro-batches, once for all rows. Gradients must be cleared before the
  // call, and the sampler must deal fixed micro-batches: otherwise the call throws InvalidArgument and the group
  // has failed.
  using LossOf = std::function<Tensor(std::int64_t begin, std::int64_t end)>;
  std::optional<std::int64_t> backward(std::int64_t rows, const LossOf& loss_of);
  // Runs backward(rows, loss_of) for a batch: each micro-batch is a copy of its rows of `batch`.
  using LossOfBatch = std::function<Tensor(const data::Batch& micro_batch)>;
  std::optional<std::int64_t> backward(const data::Batch& batch, const LossOfBatch& loss_of);

  // Takes part in a step of the other ranks without a forward, with weight 0. A rank whose data has run out
  // calls step_without_data().
  void step_without_data();

  // Checks, between steps, that the parameters are equal on all ranks, to the last bit. The call is collective and
  // blocking. If parameters differ, every rank throws Mismatch, which names the first parameter that differs and the
  // ranks. Parameters stay equal if every rank's optimizer makes equal updates.
  void check_replicas() const;

  // Makes every later synchronised backward() compare the data that ranks read: length, seed, epoch, batch size, order
  // and the place where the pass began. If these differ, backward() throws Mismatch, which names the difference and the
  // ranks. The comparison needs no message of its own. `loader` is a data::DataLoader, which replaces the loader
  // watched before; its passes end when the training ends. Throws InvalidArgument if the loader's sampler reads for
  // another rank.
  template <TellsIdentity Loader>
  void watch(Loader&& loader) {
    require_rank_of_group(*group_, loader);
    watch(loader.identity());
    end_with_training(loader, *group_);
  }
  void watch(DataIdentity identity);

  // Returns the reason, once all ranks have agreed to end the training (comm/stop.h); nullopt before. All ranks get an
  // equal reason after the same step. Loops over progress(loader, ddp), and over a watched loader, end by themselves.
  std::optional<std::string> should_stop() const { return lockstep::should_stop(*group_); }
  // Returns the value for main() to return: 0, or after a stop by a signal LOCKSTEP_REQUEUE_EXIT_CODE, by default 75.
  int exit_code() const { return lockstep::exit_code(*group_); }

  // Returns the parameters in registration order, for the optimizer.
  const std::vector<Tensor>& parameters() const { return parameters_; }
  nn::Module& module() const { return module_; }
  nn::Module* operator->() const { return &module_; }
  const std::shared_ptr<ProcessGroup>& group() const { return group_; }
  const Reducer& reducer() const;
  // Returns the number of synchronised backwards that have finished.
  std::int64_t steps() const;
  // Sets the number of steps that earlier runs have done, for a resumed run. steps() and randomness continue from this
  // number; records and messages count the steps of this run. All ranks call set_steps() between two steps, with equal
  // values. Throws InvalidArgument if `steps` is negative.
  void set_steps(std::int64_t steps);
  // Returns the weight summed over all ranks in the last synchronised step, or, within a step of micro-batches, this
  // rank's weight so far. If no rank had data the weight is 0, and gradients keep their values, or are 0. On a GPU the
  // call waits for the step.
  std::int64_t last_weight() const;
  // Returns the rows and loss of all ranks in the latest synchronised step that is known without a wait. On the CPU
  // this is the last step; on a GPU this is the step five before the last step, or, with a single rank, the last step
  // that the device has finished.
  const GlobalBatch& last_batch() const;
  // Returns the loss of last_batch(), which is the loss of all ranks' rows and not of this rank's rows.
  std::optional<double> last_loss() const { return last_batch().loss; }
  // Returns the times of the last synchronised step: how long the step waited for collectives, and which collectives
  // ran during backward.
  const trace::StepRecord& last_step() const { return reducer().last_step(); }
  // Returns whether the host knows, without a wait, that the device has finished the last synchronised step. Always
  // true on the CPU.
  bool is_step_over() const { return reducer().is_step_over(); }

 private:
  friend class Snapshots;
  // Makes each synchronised backward() run `action` at its end, when gradients are complete, and no optimizer has
  // written a parameter yet. A null `action` does nothing.
  void before_update(std::function<void()> action);
  // Makes the next backward() that adds to earlier gradients run `action` at its beginning. Earlier gradients are those
  // of a micro-batch, or those of the step before if they were not cleared and no parameter was written since. A null
  // `action` does nothing.
  void before_accumulate(std::function<void()> action);
  std::vector<NamedBuffer> state() const;
  std::uint64_t versions() const;
  nn::ForwardContext context_of(std::vector<std::int64_t> ids) const;
  template <typename Call>
  Tensor in_forward(Call call);
  Tensor run_forward(const Tensor& x);
  void set_weight_to(std::int64_t weight);
  template <typename Call>
  std::optional<std::int64_t> in_step(Call call);
  void run_backward(const Tensor& loss);
  void run_without_rows();
  void run_micro_batches(std::int64_t rows, const LossOf& loss_of);
  // Throws if the module has a new parameter, because the parameter's gradient would not be averaged.
  void refuse_changed() const;
  void begin_step();
  // Returns the name of the first parameter with a gradient that is not 0.
  std::optional<std::string> live_gradient() const;
  void carry_gradients(std::int64_t weight);
  void finish_step();
  // Fails the group with the text of the exception that is being handled, and forgets the step.
  void give_up() noexcept;
  // Tells the reducer the order of the first backward, unless shards have fixed it, and binds the gradients to
  // the arena.
  void plan(std::span<const Tensor> ready_order);
  std::vector<int> order_of(std::span<const Tensor> ready_order) const;

  nn::Module& module_;
  std::shared_ptr<ProcessGroup> group_;
  std::vector<Tensor> parameters_;
  std::unordered_map<const void*, int> index_;  // indices of parameters by Tensor::id
  Loss loss_;
  bool overlap_;
  Reproducible reproducible_;
  std::uint64_t seed_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<ShardedParameters> shards_;  // null without shards
  // The indices of parameters that had a gradient before this step and that this backward has not reached yet.
  std::set<int> carried_;
  // The carried gradients, by parameter, on a rank without rows. These gradients keep their values if no rank has rows.
  std::vector<std::pair<int, Tensor>> previous_gradients_;
  const std::function<void(const Tensor& loss)> own_backward_;
  bool planned_ = false;
  bool ids_given_ = false;  // whether the model's context has the ids of the last forward
};

}  // namespace lockstep
