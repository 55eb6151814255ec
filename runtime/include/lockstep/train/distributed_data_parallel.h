// SPDX-License-Identifier: Apache-2.0
// DistributedDataParallel: a model whose replicas on all ranks stay equal, bit by bit.
//
//   DistributedDataParallel ddp(model, group);          // rank 0's weights everywhere
//   for (const auto& [x, y, ids] : loader) {
//     ddp.backward(cross_entropy(ddp(x, ids), y));      // all-reduces run while backward computes
//     optimizer.step();                                 // gradients are the mean over the global batch
//     optimizer.zero_grad();
//   }
//
// Gradients live in the Reducer's arena: backward writes them where the collectives read them, nothing is packed or
// copied, and a world of one takes the same way. The order of the buckets is read off the tape of the first backward,
// so that communication hides behind it from the first step on.
//
// The loss is a mean over the rows, unless DdpOptions::loss says that it is a sum: a number does not tell, and the mean
// of sums is wrong by a factor. Either is exact for any partition of the batch. A rank without rows calls
// ddp(x) and backward() like the others, with 0 rows, or step_without_data().
//
// lockstep::libtorch::DistributedDataParallel has the same verbs; docs/LIBTORCH.md lists the differences and their
// reasons. Above all, backward() is a call of this object, which learns of the tape in no other way; with torch it is
// the loss's, or ddp's. lockstep::backward(loss) of a loss that depends on its parameters is this object's
// backward(loss).
//
// On a GPU (a group of NCCL's, and model.to(group->device())) no call of a step waits for the device, but where the
// host is more than two steps ahead of it; so the loss is known five steps late (in a world of one as soon as the
// device has got to it), and findings of kernels, such as an index out of range, within three.
//
// Threads: one. Collective: the constructor and every synchronised backward(); all ranks take part in the same order.
// Failure: throws the group's errors (PeerLost, Timeout, Mismatch), sticky. Mismatch from the constructor names the
//   first parameter that differs between the ranks. Mismatch from a synchronised backward() says that the replicas are
//   not equal any more, as after an optimizer's step that one rank left out, and names the steps, the ranks and the
//   first parameter. Any other exception that leaves backward(), or a forward between micro-batches, is this rank's
//   failure: the group fails on every rank at once with its text (ddp/own_failure.h). An exception of another forward
//   may be caught, and costs nothing. A world of one forgets the step, and continues.
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
class Trainer;

// Equal on all ranks. lockstep::libtorch::DdpOptions has the same members, and some of torch's.
struct DdpOptions {
  BucketOptions buckets = {};
  // How backward()'s loss combines its terms: their mean or their sum.
  Loss loss = Loss::mean;
  // Parameters, by dotted name, that are known never to be in a loss, on any rank: they hold up no bucket. Unused
  // parameters that are not declared are found at the end of each backward.
  std::vector<std::string> unused = {};
  // False: buckets leave at the end of backward.
  bool overlap = true;
  // A digest of the parameters is compared over the ranks in every step whose number is a multiple; 0: in none.
  // Default: 100. Beside it the ranks compare in each step how often their parameters were written
  // (Tensor::version()), and, if that differs, the parameters: ddp/equality/divergence_check.h.
  std::optional<std::int64_t> compare_every = std::nullopt;
  // Exchanges gradients in place of the group's all-reduce: ddp/comm_hook.h. Its name is the same on all ranks.
  CommHook comm_hook = {};
  // The reaction to NaN and infinity in this rank's own gradients: ddp/not_finite.h.
  NotFinite not_finite = NotFinite::tell;
  // The same bits at any number of ranks: each step is a backward(rows, loss_of). Sets intra_op_threads() to its
  // threads.
  Reproducible reproducible = {};
  // Shard::optimizer: each rank keeps the state of an optimizer for its share of the parameters, updates that, and gets
  // the others' weights from them, on the CPU with the bits that they have without shards; docs/SHARDING.md. An
  // optimizer that is made of parameters() behind this object knows it by itself. A world of one ignores it.
  // InvalidArgument with a comm_hook, and for parameters of another DistributedDataParallel.
  Shard shard = Shard::none;
  // The seed of dropout and all other randomness in a forward.
  std::uint64_t seed = 0;
};

class LOCKSTEP_API DistributedDataParallel {
 public:
  // `model` outlives this object. Compares the parameters' names, shapes and dtypes over the ranks, then broadcasts
  // rank 0's values. InvalidArgument if the model has no parameters, or one is not on the group's device.
  DistributedDataParallel(nn::Module& model, std::shared_ptr<ProcessGroup> group, const DdpOptions& options = {});
  // Gradients get memory of their own again.
  ~DistributedDataParallel();
  DistributedDataParallel(const DistributedDataParallel&) = delete;
  DistributedDataParallel& operator=(const DistributedDataParallel&) = delete;

  // The model's forward on this rank's rows (dimension 0 of x). The ids of an earlier call are forgotten: a layer that
  // is random then throws InvalidArgument, unless there are no rows or the program sets the model's context itself.
  Tensor operator()(const Tensor& x);
  // With the rows' global sample ids, for layers that are random: dropout depends on (seed, step, id), so that a run
  // computes the same at every world size. InvalidArgument if there is not one id per row.
  Tensor operator()(const Tensor& x, std::vector<std::int64_t> ids);

  // The same, and the model's own train() and eval(), so that code which takes a model takes this too.
  Tensor forward(const Tensor& x) { return (*this)(x); }
  Tensor forward(const Tensor& x, std::vector<std::int64_t> ids) { return (*this)(x, std::move(ids)); }
  void train(bool on = true) { module_.train(on); }
  void eval() { module_.eval(); }

  // Sets the number of terms that this rank's loss is the mean of (tokens that count, say), in place of the rows, for
  // the next backward. Between forward and backward it holds until the next forward; before the first forward since the
  // last backward, for all forwards until the next, but with fixed micro-batches backward() then refuses it: call it in
  // each loss_of. InvalidArgument if it is negative.
  void set_weight(std::integral auto weight) { set_weight_to(static_cast<std::int64_t>(weight)); }
  void set_weight(std::floating_point auto weight) =
      delete;  // 0.5 would be 0: give all ranks' weights in smaller units

  // While one lives that is on, backward() sends nothing: gradients are this rank's weighted sum so far, to be left
  // alone until a synchronised backward() closes the step. Do not divide the loss by the number of micro-batches.
  NoSync no_sync(bool is_on = true);

  // Backward of the loss, with the collectives behind it. Afterwards every parameter has a gradient, the mean (or the
  // sum, as DdpOptions::loss says) over the global batch, equal on all ranks (0 if no rank's loss depends on the
  // parameter). It is added to the one that is there, unless zero_grad() has cleared it: two losses of a step may each
  // have a forward and a backward. Returns last_weight(), on a GPU nullopt. InvalidArgument if the loss is not a single
  // number, depends on no parameter, or no forward went through this object since the last backward(); and from forward
  // in no_sync(), for a step's first micro-batch, if gradients are not cleared. With DdpOptions::shard each rank has
  // its share of the gradients alone afterwards, and nothing can be added to it: InvalidArgument, on top of an earlier
  // one.
  std::optional<std::int64_t> backward(const Tensor& loss);
  // A step of this rank's rows, which may be none: `loss_of(begin, end)` makes the loss of some of them, with a forward
  // through this object, and is called once for each of this rank's fixed micro-batches that has rows
  // (ddp/reproducible.h); if there are none, once for all rows. Gradients must be cleared before, and rows be dealt as
  // fixed micro-batches: InvalidArgument, behind which the group has failed.
  using LossOf = std::function<Tensor(std::int64_t begin, std::int64_t end)>;
  std::optional<std::int64_t> backward(std::int64_t rows, const LossOf& loss_of);
  // backward() of a batch: each micro-batch is a copy of its rows.
  using LossOfBatch = std::function<Tensor(const data::Batch& micro_batch)>;
  std::optional<std::int64_t> backward(const data::Batch& batch, const LossOfBatch& loss_of);

  // Takes part in a step of the others without a forward of its own, with weight 0: for a rank whose data has run out.
  void step_without_data();

  // Checks, between steps, that the parameters are equal on all ranks, to the last bit. Collective and blocking.
  // Mismatch, on every rank, names the first that differs and the ranks. Parameters stay equal as long as each rank's
  // optimizer does the same.
  void check_replicas() const;

  // From now on a synchronised backward() finds ranks that read other data than each other, in length, seed, epoch,
  // batch size, order or where the pass began: Mismatch names what differs, and the ranks. `loader`: a
  // data::DataLoader, in place of the one before, which from now on ends with the training. Costs no message of its
  // own. InvalidArgument if its sampler reads for another rank than this one.
  template <TellsIdentity Loader>
  void watch(Loader&& loader) {
    require_rank_of_group(*group_, loader);
    watch(loader.identity());
    end_with_training(loader, *group_);
  }
  void watch(DataIdentity identity);

  // Whether all ranks have agreed to end the training, and why (comm/stop.h): the same on every rank between the same
  // two steps. Loops over progress(loader, ddp), and over a loader that is watched, end by themselves then.
  bool should_stop() const { return lockstep::should_stop(*group_); }
  std::optional<std::string> stop_reason() const { return lockstep::stop_reason(*group_); }
  // For main() to return: 0, or after a stop for a signal 75, or LOCKSTEP_REQUEUE_EXIT_CODE.
  int exit_code() const { return lockstep::exit_code(*group_); }

  // For the optimizer: in registration order.
  const std::vector<Tensor>& parameters() const { return parameters_; }
  nn::Module& module() const { return module_; }
  nn::Module* operator->() const { return &module_; }
  const std::shared_ptr<ProcessGroup>& group() const { return group_; }
  const Reducer& reducer() const;
  // Synchronised backwards finished.
  std::int64_t steps() const;
  // Sets the steps that a resumed run has done before. steps() counts from there, and so does randomness; records and
  // messages count this run's. Between steps, equal on all ranks. InvalidArgument if it is negative.
  void set_steps(std::int64_t steps);
  // From now on runs `action` in each synchronised backward(), last: gradients are there, and no optimizer has written
  // a parameter. Null: nothing. For Snapshots.
  void before_update(std::function<void()> action);
  // Runs `action` at the begin of the next backward() that adds to the gradients of the one before: they were not
  // cleared, and no parameter was written in between; or they are a micro-batch's. Null: no action. For Snapshots.
  void before_adding(std::function<void()> action);
  // The weight summed over all ranks in the last synchronised step, or this rank's so far. 0: no rank had data;
  // gradients keep their values, or are 0. On a GPU waits for the step.
  std::int64_t last_weight() const;
  // All ranks' rows and loss in the last synchronised step whose are known without a wait: on the CPU the last one, on
  // a GPU the one five steps before, and in a world of one the last that the device has ended.
  const GlobalBatch& last_batch() const;
  // The loss of the last global batch, not of this rank's rows.
  std::optional<double> last_loss() const { return last_batch().loss; }
  // The waits of the last synchronised step, and the collectives that ran behind backward.
  const trace::StepRecord& last_step() const { return reducer().last_step(); }
  // Whether the last synchronised step is over on the device too, as far as is known without a wait. On the CPU always.
  bool is_step_over() const { return reducer().is_step_over(); }

 private:
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
  // Refuses a parameter that is new to the module: its gradient would not be averaged.
  void refuse_changed() const;
  void begin_step();
  // The first parameter with a gradient that is not 0.
  std::optional<std::string> live_gradient() const;
  void carry_gradients(std::int64_t weight);
  void finish_step();
  // While an exception is handled that has been kept: tells the others, and forgets the step.
  void give_up() noexcept;
  // The first backward knows its order: tells it to the reducer, but with shards, which are dealt out already, and
  // binds the gradients to the arena.
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
  std::set<int> carried_;  // parameters with a gradient of before this step, which this backward has not reached yet
  // The carried gradients, by parameter, on a rank without rows: they keep their values if no rank has rows.
  std::vector<std::pair<int, Tensor>> set_aside_;
  const Tensor::LossBackward own_backward_;
  bool planned_ = false;
  bool ids_given_ = false;  // the model's context is that of the last forward's ids
};

}  // namespace lockstep
