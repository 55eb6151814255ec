// SPDX-License-Identifier: Apache-2.0
// Computes which samples a rank reads, as pure functions of (length, rank, world, seed, epoch, position).
//
// Samplers need no communication: each rank computes its own part, and the parts fit together because every rank has
// equal length, world, seed and epoch. An epoch's order does not depend on the machine or the world size, so a run can
// resume at another world size. The resumed ranks continue the order after the samples that all ranks together
// have consumed.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep::data {

// EpochOrder: which sample comes at which position of an epoch.

// EpochOrder is a pure function (seed, epoch, position) -> sample, equal on all ranks and at every world size. Samplers
// deal the positions out to the ranks.
//
//   EpochOrder::shuffled(length, seed)                      each sample once
//   EpochOrder::weighted(weights, draws, seed)              with replacement
//   EpochOrder::shuffled(train.size(), seed).within(train)  of a subset, whose samples are listed in `train`
//
// Threads: several threads may call const functions at once; no other call may run during set_epoch(). Copies
// are independent.
class LOCKSTEP_API EpochOrder {
 public:
  // Replaces each position, which is in [0, size()), by the sample at this position. Several threads may call a Lookup
  // at once.
  using Lookup = std::function<void(std::span<std::int64_t> positions)>;
  using OfEpoch = std::function<Lookup(std::int64_t epoch)>;

  // Returns the order 0, 1, 2, ... Throws InvalidArgument for a length below 0.
  static EpochOrder in_order(std::int64_t length);
  // Returns an order with each sample once, in the random order of a Permutation.
  static EpochOrder shuffled(std::int64_t length, std::uint64_t seed);
  // Returns an order of `draws` samples per epoch, drawn with replacement: each draw is independent, and gives sample i
  // with probability weights[i] / sum(weights). The order takes 12 bytes per weight. Throws InvalidArgument if a weight
  // is negative or not finite, if no weight is above 0, or if there are more than 2^32 weights.
  static EpochOrder weighted(std::span<const double> weights, std::int64_t draws, std::uint64_t seed);
  // Makes an order from the program's function `of_epoch`, which is pure and equal on all ranks. `digest` is a digest
  // of all inputs of `of_epoch` besides seed and epoch: ranks compare their digests to find that their orders differ.
  EpochOrder(std::int64_t size, std::uint64_t seed, std::uint64_t digest, OfEpoch of_epoch);

  // Returns this order applied to a subset: samples[i] replaces sample i. lookup() throws InvalidArgument if `samples`
  // has no element i.
  EpochOrder within(std::vector<std::int64_t> samples) const;

  std::int64_t size() const { return size_; }  // number of samples in an epoch
  std::uint64_t seed() const { return seed_; }
  std::uint64_t digest() const { return digest_; }
  std::int64_t epoch() const { return epoch_; }
  // Sets the epoch, which is 0 at first. Throws InvalidArgument for an epoch below 0.
  void set_epoch(std::int64_t epoch);

  void lookup(std::span<std::int64_t> positions) const { lookup_(positions); }
  std::int64_t operator[](std::int64_t position) const {
    lookup_({&position, 1});
    return position;
  }

 private:
  std::int64_t size_;
  std::uint64_t seed_;
  std::uint64_t digest_;
  OfEpoch of_epoch_;
  std::int64_t epoch_ = 0;
  Lookup lookup_;
};

// Fixed micro-batches: a global batch is cut into a number of micro-batches that the program fixes. So the computation
// on each micro-batch does not depend on the number of ranks (ddp/reproducible.h).
//
// Each micro-batch has ceil(global_batch / micro_batches) rows. A short last batch fills the first micro-batches, and
// leaves the last micro-batches short or empty. Each rank has a run of consecutive micro-batches.

// MicroBatchRange holds micro-batches begin, begin + 1, ... end - 1.
struct MicroBatchRange {
  int begin = 0;
  int end = 0;
  int count() const { return end - begin; }
  bool operator==(const MicroBatchRange&) const = default;
};

// Returns the micro-batches of `rank`, if the ranks share the micro-batches as evenly as possible: 8 over 3 ranks are
// [0, 2), [2, 5) and [5, 8). Throws InvalidArgument if there are fewer micro-batches than ranks.
LOCKSTEP_API MicroBatchRange micro_batches_of(int micro_batches, int rank, int world);
// Returns the number of rows of a full micro-batch. Throws InvalidArgument if an argument is below 1, or global_batch
// is above 2^40.
LOCKSTEP_API std::int64_t micro_batch_rows(std::int64_t global_batch, int micro_batches);

// RowRange is a run of consecutive rows.
struct RowRange {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

// Returns the rows of rank `rank` when `rows` rows are split as PyTorch's chunk(world) does: into pieces of ceil(rows /
// world) rows. The last piece may be short, and ranks after the last piece have no rows. For example, 30 rows over 8
// ranks are seven times 4 rows and once 2 rows; 10 rows over 8 ranks are five times 2 rows and three empty ranks.
LOCKSTEP_API RowRange chunk(std::int64_t rows, int rank, int world);

// Returns the rows of rank `rank` in a batch of `rows` rows, when a full batch has `global_batch` rows in
// `micro_batches` fixed micro-batches.
LOCKSTEP_API RowRange rows_in_micro_batches(std::int64_t rows, std::int64_t global_batch, int micro_batches, int rank,
                                            int world);

// SamplerState is a place in a run's data. The state is equal on all ranks and does not depend on the number of ranks.
// Programs keep it in a checkpoint.
struct SamplerState {
  std::int64_t length = 0;  // number of samples in an epoch
  std::uint64_t seed = 0;
  std::uint64_t order = 0;  // EpochOrder::digest()
  std::int64_t epoch = 0;
  // The number of samples, from the beginning of the epoch's order, that all ranks together have consumed. If consumed
  // == length, the epoch is over.
  std::int64_t consumed = 0;
  bool operator==(const SamplerState&) const = default;
};

// RankOfGroup is a type with a rank and a number of ranks, such as ProcessGroup.
template <typename G>
concept RankOfGroup = requires(const G& group) {
  { group.rank() } -> std::convertible_to<int>;
  { group.size() } -> std::convertible_to<int>;
};

// Sampler gives one rank its rows of each epoch, in batches. Rows are indices into the dataset, which are also the
// global sample ids. A pass runs from the epoch's beginning, or from the place given to resume(), to the epoch's end.
//
// Threads: several threads may call const functions at once; no other call may run during a call of a
// non-const function.
// Failure: functions and constructors throw InvalidArgument for a number out of its range.
class LOCKSTEP_API Sampler {
 public:
  virtual ~Sampler() = default;

  // Goes to the beginning of an epoch; `epoch` is equal on all ranks. A new sampler is at the beginning of epoch 0.
  void set_epoch(std::int64_t epoch);
  // Continues after the samples that an earlier run has consumed, with any number of ranks and any batch size. Throws
  // InvalidArgument if the earlier run had another length, seed or order.
  void resume(const SamplerState& state);
  // Throws InvalidArgument if resume(state) would throw it.
  void require_place(const SamplerState& state) const;
  // Returns the place after the first `batches` batches of this pass.
  SamplerState state_after(std::int64_t batches) const;

  // Returns the number of batches that every rank gets in this pass.
  std::int64_t num_batches() const;
  // Returns the number of batches in a pass that begins after the first `consumed` samples of an epoch.
  std::int64_t num_batches_after(std::int64_t consumed) const;
  // Returns this rank's rows of batch `index` (0 <= index < num_batches), in order, perhaps none.
  std::vector<std::int64_t> batch(std::int64_t index) const;
  // Returns the number of rows that all ranks together have in a batch, except for the last batch.
  virtual std::int64_t global_batch() const = 0;

  const EpochOrder& order() const { return order_; }
  // rank() returns the rank that this sampler reads for, and world() the number of ranks.
  int rank() const { return rank_; }
  int world() const { return world_; }
  // Returns the names and values of the numbers that decide, besides the rank, which samples batch() returns.
  // DistributedDataParallel::watch() compares these numbers, which must be equal on all ranks.
  std::vector<std::pair<std::string, std::uint64_t>> identity() const;

 protected:
  // Rows holds a rank's rows of a batch: positions first, first + stride, ... after the batch's first position in the
  // epoch's order. Positions past the epoch's end continue at the epoch's front.
  struct Rows {
    std::int64_t first = 0;
    std::int64_t stride = 1;
    std::int64_t count = 0;
  };

  // Makes a sampler whose batches have `batch_rows` rows, at least 1: `option` names the option that set this number,
  // and `whose` says whose rows the number counts, for messages.
  Sampler(const char* name, EpochOrder order, int rank, int world, std::int64_t batch_rows, const char* option,
          const char* whose);
  // Returns the number of rows in a batch, except for the last batch: those of one rank, or those of all ranks, as the
  // option counts them.
  std::int64_t batch_rows() const { return batch_rows_; }

 private:
  // When `left` samples of the epoch are left, batches_in() returns the number of batches in them, and next_rows() this
  // rank's rows of the next batch.
  virtual std::int64_t batches_in(std::int64_t left) const = 0;
  virtual Rows next_rows(std::int64_t left) const = 0;
  // Returns a number that says how the sampler treats samples that batches or ranks don't divide evenly.
  virtual std::uint64_t remainder() const = 0;

  const char* name_;
  EpochOrder order_;
  int rank_;
  int world_;
  std::int64_t batch_rows_;
  std::int64_t start_ = 0;  // number of samples consumed before this pass
};

// Uneven says how samples are dealt out when the number of ranks does not divide the dataset's length.
enum class Uneven : std::uint8_t {
  // Samples from the epoch's front come twice, so that every rank has equally many. PyTorch's default.
  pad,
  // The epoch's tail is left out, so that every rank has equally many samples. PyTorch's drop_last.
  drop,
  // Every sample comes once: some ranks have one sample more than other ranks, and a last batch may have no rows. Use
  // it to evaluate.
  exact,
};

struct DistributedSamplerOptions {
  std::int64_t rows_per_rank = 0;  // number of rows of one rank in a batch; must be given
  bool shuffle = true;
  std::uint64_t seed = 0;  // seed of the shuffle, equal on all ranks
  Uneven uneven = Uneven::pad;
};

// DistributedSampler deals samples out as PyTorch's DistributedSampler (torch/utils/data/distributed.py) does: rank r
// reads positions r, r + world, r + 2 world, ... of the epoch. The last batch may be short.
class LOCKSTEP_API DistributedSampler final : public Sampler {
 public:
  DistributedSampler(std::int64_t length, int rank, int world, const DistributedSamplerOptions& options);
  // Ignores shuffle and seed, which the order decides.
  DistributedSampler(EpochOrder order, int rank, int world, const DistributedSamplerOptions& options);
  DistributedSampler(std::int64_t length, const RankOfGroup auto& group, const DistributedSamplerOptions& options)
      : DistributedSampler(length, group.rank(), group.size(), options) {}
  DistributedSampler(EpochOrder order, const RankOfGroup auto& group, const DistributedSamplerOptions& options)
      : DistributedSampler(std::move(order), group.rank(), group.size(), options) {}

  std::int64_t global_batch() const override;

 private:
  std::int64_t batches_in(std::int64_t left) const override;
  Rows next_rows(std::int64_t left) const override;
  std::uint64_t remainder() const override { return static_cast<std::uint64_t>(uneven_); }
  // Returns how many of the `left` samples `rank` gets.
  std::int64_t count_of(int rank, std::int64_t left) const;

  Uneven uneven_;
};

struct GlobalBatchSamplerOptions {
  std::int64_t global_batch = 0;  // number of rows of all ranks together in a batch; must be given
  bool shuffle = true;
  std::uint64_t seed = 0;  // seed of the shuffle, equal on all ranks
  bool drop_last = false;  // whether a short last batch is left out
  // The number of fixed micro-batches in a batch, for equal bits at any number of ranks (ddp/reproducible.h). Each rank
  // has a run of the micro-batches (micro_batches_of(), above). With 0 each rank has its chunk() of a batch.
  int micro_batches = 0;
};

// GlobalBatchSampler cuts the epoch into global batches as a single process would, so that a run computes the same
// steps at every world size. Each global batch is split over the ranks along dimension 0, by chunk() or as fixed
// micro-batches. Every sample comes exactly once per epoch; every rank gets a batch for every step, perhaps of 0 rows.
class LOCKSTEP_API GlobalBatchSampler final : public Sampler {
 public:
  GlobalBatchSampler(std::int64_t length, int rank, int world, const GlobalBatchSamplerOptions& options);
  // Ignores shuffle and seed, which the order decides.
  GlobalBatchSampler(EpochOrder order, int rank, int world, const GlobalBatchSamplerOptions& options);
  GlobalBatchSampler(std::int64_t length, const RankOfGroup auto& group, const GlobalBatchSamplerOptions& options)
      : GlobalBatchSampler(length, group.rank(), group.size(), options) {}
  GlobalBatchSampler(EpochOrder order, const RankOfGroup auto& group, const GlobalBatchSamplerOptions& options)
      : GlobalBatchSampler(std::move(order), group.rank(), group.size(), options) {}

  std::int64_t global_batch() const override { return batch_rows(); }

 private:
  std::int64_t batches_in(std::int64_t left) const override;
  Rows next_rows(std::int64_t left) const override;
  std::uint64_t remainder() const override {
    return 2 * static_cast<std::uint64_t>(micro_batches_) + (drop_last_ ? 1 : 0);
  }

  bool drop_last_;
  int micro_batches_;
};

}  // namespace lockstep::data
