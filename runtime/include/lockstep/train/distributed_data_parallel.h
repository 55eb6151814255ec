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
// Collective: the constructor and every synchronised backward() are collective; all ranks must call the constructors
//   and backward() in the same order. A rank without rows calls ddp(x) and backward() with 0 rows, or
//   calls step_without_data().
// Threads: a DistributedDataParallel belongs to one thread.
// Failure: a DistributedDataParallel's functions throw the group's errors (PeerLost, Timeout, Mismatch); every later
//   call throws the first error again. An exception that leaves backward(), or a forward between micro-batches, fails
//   the group on every rank, with the exception's text. If an exception leaves a forward that is not between
//   micro-batches, the program may catch the exception and continue. A group of one rank does not fail after an
//   exception: the group forgets the step, and the program may continue.
//
// The guide is docs/ENGINE.md. docs/GPUS.md says where the host waits for a GPU. docs/LIBTORCH.md, "lockstep's own
// tensors", lists the differences to lockstep::libtorch::DistributedDataParallel. The reasons
// are in docs/adr/0079-one-trainer.md.
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

// DdpOptions holds the settings of a DistributedDataParallel; the settings must be equal on all ranks. The type
// lockstep::libtorch::DdpOptions has all members of DdpOptions and further members.
struct DdpOptions {
  // The sizes of the buckets.
  BucketOptions buckets = {};
  // The way in which the loss combines its terms, as a mean (Loss::mean) or as a sum (Loss::sum). The library can't see
  // whether a loss is a mean or a sum; a wrong setting makes gradients wrong by a factor. With either setting the
  // gradients are exact for any partition of the batch.
  Loss loss = Loss::mean;
  // The dotted names of parameters on which no rank's loss depends; no bucket of gradients waits for these parameters.
  // At the end of each backward, the library finds by itself the unused parameters that `unused` does not list.
  std::vector<std::string> unused = {};
  // If true, buckets of gradients are sent during backward; if false, buckets are sent at the end of backward.
  bool overlap = true;
  // The number of steps after which the ranks compare a digest of their parameters; the default is 100,
  // and 0 turns the comparison of digests off. In every step the ranks also compare how often their
  // parameters were written (Tensor::version()). If the numbers of writes differ, the ranks compare the
  // parameters; see ddp/equality/divergence_check.h.
  std::optional<std::int64_t> compare_every = std::nullopt;
  // The hook that exchanges gradients in place of the group's all-reduce; see ddp/comm_hook.h. The hook's name must be
  // equal on all ranks.
  CommHook comm_hook = {};
  // The reaction to a NaN or an infinity in this rank's own gradients; see ddp/not_finite.h.
  NotFinite not_finite = NotFinite::tell;
  // The settings that make a run's results bit-identical at any number of ranks (ddp/reproducible.h). If `reproducible`
  // is on, each step must call backward(rows, loss_of), and the constructor of DistributedDataParallel sets
  // intra_op_threads() to Reproducible::threads.
  Reproducible reproducible = {};
  // The state that ranks divide among themselves. With Shard::optimizer each rank keeps only the optimizer state of its
  // shard, updates the weights of its shard, and receives the other weights from the other ranks (docs/SHARDING.md). On
  // the CPU the weights have the same bits with Shard::optimizer as with Shard::none. With Shard::optimizer an
  // optimizer needs no setting of its own, but must be made from parameters() after the DistributedDataParallel was
  // made. With a single rank Shard::optimizer changes nothing. With Shard::optimizer the constructor throws
  // InvalidArgument if there is a comm_hook, or if a parameter also belongs to another DistributedDataParallel.
  Shard shard = Shard::none;
  // The seed of all randomness in a forward, such as dropout.
  std::uint64_t seed = 0;
};

class LOCKSTEP_API DistributedDataParallel {
 public:
  // Compares the names, shapes and dtypes of the parameters over the ranks, and then broadcasts the values of rank 0's
  // parameters. The constructor is collective. `model` outlives this object. If names, shapes or dtypes differ, every
  // rank throws Mismatch, which names the first parameter that differs. Throws InvalidArgument if the model has no
  // parameters, or if a parameter is not on the group's device.
  DistributedDataParallel(nn::Module& model, std::shared_ptr<ProcessGroup> group, const DdpOptions& options = {});
  // Drops the gradients that lie in the Reducer's arena; later gradients of the parameters get their own memory.
  ~DistributedDataParallel();
  DistributedDataParallel(const DistributedDataParallel&) = delete;
  DistributedDataParallel& operator=(const DistributedDataParallel&) = delete;

  // Runs the model's forward on this rank's rows (dimension 0 of x), without sample ids. Throws InvalidArgument if the
  // model has a random layer, which needs sample ids. A random layer needs no sample ids if x has no rows, or if the
  // program itself sets the model's ForwardContext.
  Tensor operator()(const Tensor& x);
  // Runs the model's forward on this rank's rows, whose global sample ids are `ids`. The random numbers of a layer
  // depend only on the seed, the step and the sample's id, so dropout zeroes the same elements of a sample at every
  // number of ranks. Throws InvalidArgument unless `ids` has one id per row.
  Tensor operator()(const Tensor& x, std::vector<std::int64_t> ids);

  // forward() calls operator(), and train() and eval() call the model's functions, so code that is written for a model
  // also works with a DistributedDataParallel.
  Tensor forward(const Tensor& x) { return (*this)(x); }
  Tensor forward(const Tensor& x, std::vector<std::int64_t> ids) { return (*this)(x, std::move(ids)); }
  void train(bool on = true) { module_.train(on); }
  void eval() { module_.eval(); }

  // Sets this rank's weight for the next backward. The weight is the number of terms (such as tokens) of which this
  // rank's loss is the mean. Without set_weight() the weight is the number of rows. Throws InvalidArgument if `weight`
  // is negative.
  //
  // A call of set_weight() between a forward and its backward sets the weight until the next forward. A call of
  // set_weight() after a backward and before the next forward sets the weight of all forwards until the next backward.
  // With fixed micro-batches (ddp/reproducible.h) backward() refuses a weight that was set before the first forward;
  // call set_weight() within each call of loss_of.
  void set_weight(std::integral auto weight) { set_weight_to(static_cast<std::int64_t>(weight)); }
  void set_weight(std::floating_point auto weight) =
      delete;  // 0.5 would become 0: give all ranks' weights in smaller units

  // Returns a NoSync. While the returned NoSync lives and `is_on` is true, backward() sends nothing to other ranks. In
  // no_sync() the gradients are the weighted sum over this rank's micro-batches so far; the program must not change the
  // gradients until a synchronised backward() ends the step. Do not divide the loss by the number of micro-batches.
  NoSync no_sync(bool is_on = true);

  // Runs the backward of `loss` while collectives average the gradients over the ranks. After backward() every
  // parameter's gradient is the mean (or the sum, see DdpOptions::loss) over the global batch, and is equal on all
  // ranks. A parameter's gradient is 0 if no rank's loss depends on the parameter. If zero_grad() has not cleared a
  // gradient, backward() adds to this gradient, so two losses of one step may each have a forward and a backward.
  // Returns last_weight(), or nullopt on a GPU. If a forward of this object has made `loss`, lockstep::backward(loss)
  // calls this function.
  //
  // Gradients are in the Reducer's arena: backward writes the gradients directly into the memory that the collectives
  // read. The order of the buckets follows the order in which the first backward made the gradients.
  //
  // With DdpOptions::shard each rank has only its shard of the gradients after backward(). With DdpOptions::shard a
  // backward() throws InvalidArgument if it would add to gradients that were not cleared.
  //
  // Throws InvalidArgument if the loss is not a single number, or depends on no parameter. Throws InvalidArgument if no
  // forward ran through this object since the last backward(). Throws InvalidArgument if a step's first micro-batch
  // runs its forward in no_sync() while gradients are not cleared.
  //
  // Throws Mismatch in a synchronised backward() if the replicas have become unequal, for example because one rank left
  // out an optimizer's step. The Mismatch names the steps, the ranks and the first parameter that differs. If an
  // exception that this comment does not list leaves backward(), the group fails on every rank at once, with the
  // exception's text.
  std::optional<std::int64_t> backward(const Tensor& loss);
  // Runs a step in which this rank has `rows` rows; `rows` may be 0. `loss_of(begin, end)` must return the loss of rows
  // [begin, end), computed with a forward through this object. Without fixed micro-batches (ddp/reproducible.h)
  // backward() calls loss_of once, for all rows. With fixed micro-batches backward() calls loss_of once for each of
  // this rank's micro-batches that has rows. With fixed micro-batches backward() throws InvalidArgument and fails the
  // group if gradients are not cleared before the call, or if the sampler does not divide the data into
  // fixed micro-batches.
  using LossOf = std::function<Tensor(std::int64_t begin, std::int64_t end)>;
  std::optional<std::int64_t> backward(std::int64_t rows, const LossOf& loss_of);
  // Runs backward(rows, loss_of) for the rows of `batch`; each call of loss_of gets a micro-batch, which is a copy of
  // some rows of `batch`.
  using LossOfBatch = std::function<Tensor(const data::Batch& micro_batch)>;
  std::optional<std::int64_t> backward(const data::Batch& batch, const LossOfBatch& loss_of);

  // Takes part in a step of the other ranks without running a forward; this rank's weight in the step is 0. A rank
  // whose data has run out calls step_without_data().
  void step_without_data();

  // Checks that the parameters are equal on all ranks, to the last bit; a program calls check_replicas() between steps.
  // The call is collective and blocking. If parameters differ, every rank throws Mismatch, which names the first
  // parameter that differs and the ranks. Parameters stay equal if the optimizers of all ranks make equal updates.
  void check_replicas() const;

  // Makes every later synchronised backward() compare, over all ranks, the properties of the data that ranks read:
  // length, seed, epoch, batch size, order and the place where the pass over the data began. If the properties of the
  // ranks' data differ, backward() throws Mismatch, which names the difference and the ranks. The ranks compare the
  // properties of their data in messages that backward() sends anyway. `loader` is a data::DataLoader; each call of
  // watch() replaces the loader of the previous call. When the ranks have agreed to end the training, loops over a
  // watched loader end. Throws InvalidArgument if the loader's sampler reads the rows of another rank.
  template <TellsIdentity Loader>
  void watch(Loader&& loader) {
    require_rank_of_group(*group_, loader);
    watch(loader.identity());
    end_with_training(loader, *group_);
  }
  void watch(DataIdentity identity);

  // Returns the reason for the stop once all ranks have agreed to end the training (comm/stop.h), and nullopt before.
  // All ranks get an equal reason for the stop, after the same step. After the ranks have agreed to stop, loops over
  // progress(loader, ddp) and over a watched loader end by themselves.
  std::optional<std::string> should_stop() const { return lockstep::should_stop(*group_); }
  // Returns the exit code that main() should return: 0, or, after a stop by a signal, the value of
  // LOCKSTEP_REQUEUE_EXIT_CODE, which is 75 by default.
  int exit_code() const { return lockstep::exit_code(*group_); }

  // Returns the model's parameters in the order of registration, for the optimizer.
  const std::vector<Tensor>& parameters() const { return parameters_; }
  nn::Module& module() const { return module_; }
  nn::Module* operator->() const { return &module_; }
  const std::shared_ptr<ProcessGroup>& group() const { return group_; }
  const Reducer& reducer() const;
  // Returns the number of synchronised backwards that have finished.
  std::int64_t steps() const;
  // Sets the number of steps that earlier runs have done, for a resumed run. After set_steps(), steps() and randomness
  // continue from the new number, while records and messages count only the steps of this run. All ranks must call
  // set_steps() with equal values, between two steps. Throws InvalidArgument if `steps` is negative.
  void set_steps(std::int64_t steps);
  // Returns the weight summed over all ranks in the last synchronised step. Between the micro-batches of a step,
  // last_weight() returns this rank's weight in the step so far. If no rank had data in a step, last_weight() returns
  // 0; gradients that were not cleared before the step keep their values, and all other gradients are 0. On a GPU
  // last_weight() waits until the step has finished.
  std::int64_t last_weight() const;
  // Returns the total weight and the loss of all ranks, in the latest synchronised step for which the host knows both
  // numbers without waiting. On the CPU last_batch() describes the last step. On a GPU last_batch() describes the step
  // five steps before the last step, or, with a single rank, the last step that the device has finished.
  const GlobalBatch& last_batch() const;
  // Returns the loss of last_batch(), which is the loss over the rows of all ranks, and not only of this rank.
  std::optional<double> last_loss() const { return last_batch().loss; }
  // Returns the times of the last synchronised step, such as how long the step waited for collectives, and which
  // collectives ran during backward.
  const trace::StepRecord& last_step() const { return reducer().last_step(); }
  // Returns whether the host knows, without waiting, that the device has finished the last synchronised step. Always
  // true on the CPU.
  bool is_step_over() const { return reducer().is_step_over(); }

 private:
  friend class Snapshots;
  // Makes each synchronised backward() run `action` at its end, when the gradients are complete and no optimizer has
  // written a parameter yet. A null `action` does nothing.
  void before_update(std::function<void()> action);
  // Makes the next backward() that adds to earlier gradients run `action` before the backward begins. Earlier gradients
  // are those of an earlier micro-batch, or those of the previous step if the program has since neither cleared them
  // nor written a parameter. A null `action` does nothing.
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
  // Throws InvalidArgument if the module has a new parameter, because the new parameter's gradient would not
  // be averaged.
  void refuse_changed() const;
  void begin_step();
  // Returns the name of the first parameter whose gradient is not 0, or nullopt if there is no such parameter.
  std::optional<std::string> live_gradient() const;
  void carry_gradients(std::int64_t weight);
  void finish_step();
  // Fails the group with the text of the exception that is being handled, and forgets the current step.
  void give_up() noexcept;
  // Gives the Reducer the order in which the first backward makes the gradients, unless Shard::optimizer has already
  // fixed the order, and places the gradients in the Reducer's arena.
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
  // The indices of the parameters that had a gradient before this step and that the current backward has not
  // reached yet.
  std::set<int> carried_;
  // On a rank without rows in this step, the gradients from before the step, each with the index of its parameter. If
  // no rank has rows in this step, the values of these gradients are restored from previous_gradients_.
  std::vector<std::pair<int, Tensor>> previous_gradients_;
  const std::function<void(const Tensor& loss)> own_backward_;
  bool planned_ = false;
  bool ids_given_ = false;  // whether the model's context has the ids of the last forward
};

}  // namespace lockstep
