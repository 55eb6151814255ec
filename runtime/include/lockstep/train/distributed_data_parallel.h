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
// of sums is wrong by a factor. Either is exact for any partition of the batch. A rank whose shard has no rows calls
// ddp(x) and backward() like the others, with 0 rows.
//
// Threads: one. Collective: the constructor and every synchronised backward(); all ranks take part in the same order.
// Failure: throws what the group throws (PeerLost, Timeout, Mismatch), sticky. Mismatch from the constructor names the
//   first parameter that differs between the ranks. Mismatch from a synchronised backward() says that the replicas are
//   not equal any more, as after an optimizer's step that one rank left out: since when, where, and from which
//   parameter on.
//   Any other exception that leaves backward(), or a forward between micro-batches, is this rank's failure: the group
//   fails on every rank at once with its text (ddp/own_failure.h). One of another forward may be caught, and costs
//   nothing. A world of one forgets the step, and goes on.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lockstep/autograd/graph.h"
#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/data_identity.h"
#include "lockstep/ddp/reducer.h"
#include "lockstep/nn/module.h"

namespace lockstep {

class DivergenceCheck;
class OwnFailure;

struct DdpOptions {
  BucketOptions buckets = {};
  // What backward()'s loss is of its terms. Equal on all ranks.
  Loss loss = Loss::mean;
  // Of dropout and whatever else is random in a forward: equal on all ranks.
  std::uint64_t seed = 0;
  // A digest of the parameters is compared over the ranks in every step whose number is a multiple; 0: in none.
  // Equal on all ranks. Beside it the ranks compare in each step how often their parameters were written
  // (Tensor::version()), and, where that differs, the parameters: ddp/divergence_check.h.
  std::int64_t compare_every = 100;
};

struct DdpBackwardOptions {
  // What the loss is the mean of: samples, or the terms that count in it. Default: the rows of the last ddp(x).
  std::optional<std::int64_t> weight = std::nullopt;
  // False for all but the last micro-batch of a step: gradients are summed on this rank and nothing is sent.
  bool synchronize = true;
};

class LOCKSTEP_API DistributedDataParallel {
 public:
  // `model` outlives this object. Compares the parameters' names, shapes and dtypes over the ranks, then broadcasts
  // rank 0's values. InvalidArgument if the model has no parameters, or the group is not on the CPU.
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

  // Backward of the loss, with the collectives behind it. Afterwards every parameter has a gradient, the mean (or the
  // sum, as DdpOptions::loss says) over the global batch, equal on all ranks (0 where nobody's loss depends on the
  // parameter); without `synchronize`, this rank's weighted sum so far, to be left alone until the step is closed.
  // Returns the summed weight of all ranks: 0 means that nobody had data and gradients are 0. Of a sum, this rank's.
  std::int64_t backward(const Tensor& loss, const DdpBackwardOptions& options = {});

  // From now on a synchronised backward() finds ranks that read other data than each other, in length, seed, epoch,
  // batch size, order or where the pass began: Mismatch names what differs, and the ranks. `loader`: a
  // data::DataLoader, in place of the one before. Costs no message of its own.
  template <typename Loader>
  requires requires(const Loader& loader) { DataIdentity(loader.identity()); }
  void watch(const Loader& loader) { watch(loader.identity()); }
  void watch(DataIdentity identity);

  // For the optimizer: in registration order.
  std::vector<Tensor> parameters() const { return parameters_; }
  nn::Module& model() const { return model_; }
  const std::shared_ptr<ProcessGroup>& group() const { return group_; }
  const Reducer& reducer() const { return reducer_; }
  // Synchronised steps finished.
  std::int64_t step() const { return step_; }
  // This rank's loss in the last backward(), and what backward() returned.
  float last_loss() const { return last_loss_; }
  std::int64_t last_weight() const { return last_weight_; }
  // What the last synchronised step waited for, and what ran behind backward.
  const trace::StepRecord& last_step() const { return reducer_.last_step(); }

 private:
  std::unique_ptr<DivergenceCheck> divergence_check(std::int64_t every) const;
  nn::ForwardContext context_of(std::vector<std::int64_t> ids) const;
  template <typename Call>
  Tensor in_forward(Call call);
  Tensor forward(const Tensor& x);
  void run_backward(const Tensor& loss, const DdpBackwardOptions& options);
  // While an exception of `part` of the step is handled: keeps it; tells the others, and forgets the step.
  void keep_failure(std::string_view part) noexcept;
  void give_up(std::string_view part) noexcept;
  // The first backward knows its order: tells it to the reducer and binds the gradients to the arena.
  void plan(const Tensor& loss);

  nn::Module& model_;
  std::shared_ptr<ProcessGroup> group_;
  std::vector<Tensor> parameters_;
  std::unordered_map<const void*, int> index_;  // by Tensor::id
  Reducer reducer_;
  std::unique_ptr<DivergenceCheck> divergence_;
  std::unique_ptr<OwnFailure> failure_;
  Loss loss_;
  std::uint64_t seed_;
  bool planned_ = false;
  bool ids_given_ = false;  // the model's context is that of the last forward's ids
  std::int64_t step_ = 0;
  std::int64_t rows_ = 0;  // of the last forward
  float last_loss_ = 0;
  std::int64_t last_weight_ = 0;
};

}  // namespace lockstep
