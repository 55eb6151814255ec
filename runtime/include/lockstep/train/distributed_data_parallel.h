// SPDX-License-Identifier: Apache-2.0
// DistributedDataParallel trains a model of lockstep's own engine with replicas that stay equal on all ranks, bit by
// bit.
//
//   DistributedDataParallel ddp(model, group);          // rank 0's weights everywhere
//   for (const auto& [x, y, ids] : loader) {
//     ddp.backward(cross_entropy(ddp(x, ids), y));      // all-reduces run while backward computes
//     optimizer.step();                                 // gradients are the mean over the global batch
//     optimizer.zero_grad();
//   }
//
// - Collective: the constructor and every synchronised backward(), in one order on all ranks. A rank without rows calls
//   ddp(x) and backward() with 0 rows, or step_without_data().
// - Threads: the object belongs to one thread.
// - Failure: a call throws the group's errors (PeerLost, Timeout, Mismatch); every later call throws the same. An
//   exception that leaves backward(), or a forward between micro-batches, fails the group on every rank with its text;
//   an exception of another forward may be caught. A single rank forgets the step and continues.
//
// docs/ENGINE.md is the guide, docs/GPUS.md says where the host waits for a GPU, and docs/LIBTORCH.md, "lockstep's own
// tensors", lists the differences to lockstep::libtorch::DistributedDataParallel. Why: docs/adr/0079-one-trainer.md.
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

// Settings of DistributedDataParallel, equal on all ranks. lockstep::libtorch::DdpOptions has the same members, and
// some of its own.
struct DdpOptions {
  // The sizes of the buckets.
  BucketOptions buckets = {};
  // How the loss combines its terms: their mean or their sum. A number does not tell which it is, and the mean of sums
  // is wrong by a factor. Either is exact for any partition of the batch.
  Loss loss = Loss::mean;
  // Names, dotted, of parameters that are in no rank's loss: no bucket waits for them. Unused parameters that are not
  // declared are found at the end of each backward.
  std::vector<std::string> unused = {};
  // Whether buckets leave during backward. False: at its end.
  bool overlap = true;
  // The number of steps between two comparisons of a digest of the parameters over the ranks; 0: none. Default: 100. In
  // every step the ranks also compare how often their parameters were written (Tensor::version()), and if that differs,
  // the parameters: ddp/equality/divergence_check.h.
  std::optional<std::int64_t> compare_every = std::nullopt;
  // The exchange of gradients that replaces the group's all-reduce, see ddp/comm_hook.h. Its name is the same on all
  // ranks.
  CommHook comm_hook = {};
  // The reaction to NaN and infinity in this rank's own gradients, see ddp/not_finite.h.
  NotFinite not_finite = NotFinite::tell;
  // The settings for the same bits at any number of ranks: each step is then a backward(rows, loss_of). The constructor
  // sets intra_op_threads() to `threads`.
  Reproducible reproducible = {};
  // The state that ranks divide among themselves. With Shard::optimizer each rank keeps the optimizer's state of its
  // shard, updates the shard's weights, and receives the other weights from the other ranks: docs/SHARDING.md. On the
  // CPU the weights have the same bits as without shards. An optimizer made of parameters() after this object needs no
  // setting. With a single rank it changes nothing. InvalidArgument with a comm_hook, and for parameters of another
  // DistributedDataParallel.
  Shard shard = Shard::none;
  // The seed of dropout and all other randomness in a forward.
  std::uint64_t seed = 0;
};

class LOCKSTEP_API DistributedDataParallel {
 public:
  // Collective. Compares the parameters' names, shapes and dtypes over the ranks, then broadcasts rank 0's values.
  // `model` outlives this object. Mismatch, on every rank, names the first parameter that differs. InvalidArgument if
  // the model has no parameters, or one is not on the group's device.
  DistributedDataParallel(nn::Module& model, std::shared_ptr<ProcessGroup> group, const DdpOptions& options = {});
  // Gives gradients memory of their own again.
  ~DistributedDataParallel();
  DistributedDataParallel(const DistributedDataParallel&) = delete;
  DistributedDataParallel& operator=(const DistributedDataParallel&) = delete;

  // Runs the model's forward on this rank's rows (dimension 0 of x). It forgets the ids of an earlier call, so a random
  // layer throws InvalidArgument, unless there are no rows or the program sets the model's context itself.
  Tensor operator()(const Tensor& x);
  // Runs the forward with the rows' global sample ids, one per row (otherwise InvalidArgument). Random layers draw from
  // (seed, step, id), so dropout is the same at every number of ranks.
  Tensor operator()(const Tensor& x, std::vector<std::int64_t> ids);

  // forward() is operator(); train() and eval() are the model's. So code that takes a model takes this object too.
  Tensor forward(const Tensor& x) { return (*this)(x); }
  Tensor forward(const Tensor& x, std::vector<std::int64_t> ids) { return (*this)(x, std::move(ids)); }
  void train(bool on = true) { module_.train(on); }
  void eval() { module_.eval(); }

  // Sets the number of terms that this rank's loss is the mean of (tokens that count, say), in place of the rows, for
  // the next backward. InvalidArgument if it is negative.
  //
  // - Between forward and backward it holds until the next forward.
  // - Before the first forward since the last backward it holds for all forwards until the next backward. With fixed
  //   micro-batches backward() refuses that: call it in each loss_of.
  void set_weight(std::integral auto weight) { set_weight_to(static_cast<std::int64_t>(weight)); }
  void set_weight(std::floating_point auto weight) =
      delete;  // 0.5 would be 0: give all ranks' weights in smaller units

  // Returns an object; while it lives and is_on is true, backward() sends nothing. Gradients are then this rank's
  // weighted sum so far, which the program leaves alone until a synchronised backward() ends the step. Do not divide
  // the loss by the number of micro-batches.
  NoSync no_sync(bool is_on = true);

  // Runs the backward of the loss while collectives average its gradients. Afterwards every parameter has as gradient
  // the mean (or the sum, see DdpOptions::loss) over the global batch, equal on all ranks; 0 if no rank's loss depends
  // on it. The result is added to a gradient that zero_grad() has not cleared: two losses of a step may each have a
  // forward and a backward. Returns last_weight(), on a GPU nullopt. lockstep::backward(loss) does the same for a loss
  // of this object.
  //
  // Gradients lie in the Reducer's arena: backward writes them where the collectives read them, without a copy. The
  // first backward gives the buckets their order.
  //
  // With DdpOptions::shard each rank has only its shard of the gradients afterwards, and adding to it is an
  // InvalidArgument.
  //
  // Throws InvalidArgument
  //
  // - if the loss is not a single number, or depends on no parameter;
  // - if no forward went through this object since the last backward(), or the forward was in no_sync() for the first
  //   micro-batch of a step and gradients are not cleared.
  //
  // A synchronised backward() throws Mismatch if the replicas have become unequal, as after an optimizer's step that
  // one rank left out; it names the steps, the ranks and the first parameter. Any other exception that leaves
  // backward() fails the group on every rank at once, with its text.
  std::optional<std::int64_t> backward(const Tensor& loss);
  // Runs a step of this rank's rows, which may be none. `loss_of(begin, end)` makes the loss of some rows, with a
  // forward through this object. It is called once for each of this rank's fixed micro-batches that has rows
  // (ddp/reproducible.h), and without fixed micro-batches once for all rows. Gradients must be cleared before, and the
  // sampler must deal fixed micro-batches: otherwise the call throws InvalidArgument and the group has failed.
  using LossOf = std::function<Tensor(std::int64_t begin, std::int64_t end)>;
  std::optional<std::int64_t> backward(std::int64_t rows, const LossOf& loss_of);
  // Runs backward(rows, loss_of) for a batch: each micro-batch is a copy of its rows.
  using LossOfBatch = std::function<Tensor(const data::Batch& micro_batch)>;
  std::optional<std::int64_t> backward(const data::Batch& batch, const LossOfBatch& loss_of);

  // Takes part in a step of the other ranks without a forward, with weight 0: for a rank whose data has run out.
  void step_without_data();

  // Collective and blocking. Checks, between steps, that the parameters are equal on all ranks, to the last bit.
  // Mismatch, on every rank, names the first parameter that differs and the ranks. Parameters stay equal if every
  // rank's optimizer does the same.
  void check_replicas() const;

  // Makes every synchronised backward() from now on find ranks that read different data, in length, seed, epoch, batch
  // size, order or where the pass began: Mismatch names what differs, and the ranks. `loader` is a data::DataLoader; it
  // replaces the one watched before, and its passes end when the training ends. The check needs no message of its own.
  // InvalidArgument if the loader's sampler reads for another rank.
  template <TellsIdentity Loader>
  void watch(Loader&& loader) {
    require_rank_of_group(*group_, loader);
    watch(loader.identity());
    end_with_training(loader, *group_);
  }
  void watch(DataIdentity identity);

  // The reason, once all ranks have agreed to end the training (comm/stop.h): the same on every rank between the same
  // two steps. Loops over progress(loader, ddp), and over a loader that is watched, end by themselves.
  std::optional<std::string> should_stop() const { return lockstep::should_stop(*group_); }
  // The value for main() to return: 0; after a stop by a signal 75, or LOCKSTEP_REQUEUE_EXIT_CODE.
  int exit_code() const { return lockstep::exit_code(*group_); }

  // The parameters in registration order, for the optimizer.
  const std::vector<Tensor>& parameters() const { return parameters_; }
  nn::Module& module() const { return module_; }
  nn::Module* operator->() const { return &module_; }
  const std::shared_ptr<ProcessGroup>& group() const { return group_; }
  const Reducer& reducer() const;
  // The number of synchronised backwards that have finished.
  std::int64_t steps() const;
  // Sets the number of steps that a resumed run has done before. steps() and randomness count from there; records and
  // messages count the steps of this run. Call it between steps, with the same value on all ranks. InvalidArgument if
  // it is negative.
  void set_steps(std::int64_t steps);
  // The weight summed over all ranks in the last synchronised step, or this rank's weight so far. 0: no rank had data,
  // and gradients keep their values, or are 0. On a GPU the call waits for the step.
  std::int64_t last_weight() const;
  // The rows and loss of all ranks in the latest synchronised step that is known without a wait. On the CPU that is the
  // last step; on a GPU it is the step five before the last, or with a single rank the last one that the device has
  // finished.
  const GlobalBatch& last_batch() const;
  // The loss of that global batch, not of this rank's rows.
  std::optional<double> last_loss() const { return last_batch().loss; }
  // Times of the last synchronised step: how long it waited for collectives, and which of them ran during backward.
  const trace::StepRecord& last_step() const { return reducer().last_step(); }
  // Whether the device, too, has finished the last synchronised step, as far as is known without a wait. True on the
  // CPU.
  bool is_step_over() const { return reducer().is_step_over(); }

 private:
  friend class Snapshots;
  // Runs `action` from now on at the end of each synchronised backward(): gradients are complete, and no optimizer has
  // written a parameter yet. Null: no action.
  void before_update(std::function<void()> action);
  // Runs `action` at the beginning of the next backward() that adds to earlier gradients: those of a micro-batch, or
  // those of the step before if they were not cleared and no parameter was written since. Null: no action.
  void before_adding(std::function<void()> action);
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
  // Throws for a parameter that is new to the module, because its gradient would not be averaged.
  void refuse_changed() const;
  void begin_step();
  // The name of the first parameter with a gradient that is not 0.
  std::optional<std::string> live_gradient() const;
  void carry_gradients(std::int64_t weight);
  void finish_step();
  // Tells the other ranks of the exception that is being handled, and forgets the step.
  void give_up() noexcept;
  // Tells the reducer the order of the first backward, unless shards have fixed it, and binds the gradients to the
  // arena.
  void plan(std::span<const Tensor> ready_order);
  std::vector<int> order_of(std::span<const Tensor> ready_order) const;

  nn::Module& module_;
  std::shared_ptr<ProcessGroup> group_;
  std::vector<Tensor> parameters_;
  std::unordered_map<const void*, int> index_;  // by Tensor::id
  Loss loss_;
  bool overlap_;
  Reproducible reproducible_;
  std::uint64_t seed_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<ShardedParameters> shards_;  // null: every rank has all
  // Parameters that had a gradient before this step and that this backward has not reached yet.
  std::set<int> carried_;
  // Carried gradients, by parameter, on a rank without rows: they keep their values if no rank has rows.
  std::vector<std::pair<int, Tensor>> set_aside_;
  const std::function<void(const Tensor& loss)> own_backward_;
  bool planned_ = false;
  bool ids_given_ = false;  // whether the model's context has the ids of the last forward
};

}  // namespace lockstep
