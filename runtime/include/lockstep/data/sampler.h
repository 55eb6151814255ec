// SPDX-License-Identifier: Apache-2.0
// Which samples a rank reads: pure functions of (length, rank, world, seed, epoch, position).
//
// Ranks never talk about it: each works out its own part from plain numbers, and the parts fit together because every
// rank was given the same length, world, seed and epoch. The order of an epoch is the same on every machine and at
// every world size, so that a run can resume at another one: the rest of the epoch is the samples behind those that all
// ranks together have consumed.
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

// The order of an epoch's samples: which sample comes at which position.

// A pure function (seed, epoch, position) -> sample, the same on all ranks and at every world size. Samplers deal its
// positions out to the ranks.
//
//   EpochOrder::shuffled(length, seed)                      each sample once
//   EpochOrder::weighted(weights, draws, seed)              with replacement
//   EpochOrder::shuffled(train.size(), seed).within(train)  of a subset, whose samples are listed in `train`
//
// Threads: those of a const object may be several; set_epoch() while nobody else is inside. Copies are independent.
class LOCKSTEP_API EpochOrder {
 public:
  // Replaces positions, each in [0, size()), by the samples there. Called by several threads.
  using Lookup = std::function<void(std::span<std::int64_t> positions)>;
  using OfEpoch = std::function<Lookup(std::int64_t epoch)>;

  // 0, 1, 2, ... InvalidArgument for a length below 0.
  static EpochOrder in_order(std::int64_t length);
  // Each sample once, in the random order that Permutation says.
  static EpochOrder shuffled(std::int64_t length, std::uint64_t seed);
  // `draws` samples per epoch with replacement: sample i with probability weights[i] / sum(weights), each draw
  // independent of the others. Takes 12 bytes per weight. InvalidArgument unless the weights are finite, at least 0,
  // and one of them above, and there are at most 2^32.
  static EpochOrder weighted(std::span<const double> weights, std::int64_t draws, std::uint64_t seed);
  // An order of the program's own. `of_epoch` is pure and the same on all ranks; `digest` is of all it depends on
  // besides seed and epoch, by which ranks find that theirs differ.
  EpochOrder(std::int64_t size, std::uint64_t seed, std::uint64_t digest, OfEpoch of_epoch);

  // The same of a subset: in place of sample i comes samples[i]. InvalidArgument, when it is read, where that is not.
  EpochOrder within(std::vector<std::int64_t> samples) const;

  std::int64_t size() const { return size_; }  // samples in an epoch
  std::uint64_t seed() const { return seed_; }
  std::uint64_t digest() const { return digest_; }
  std::int64_t epoch() const { return epoch_; }
  // 0 at first. InvalidArgument below 0.
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

// Fixed micro-batches: a global batch is cut into a number of micro-batches that the program fixes, so that what is
// computed on each does not depend on how many ranks share them out (ddp/reproducible.h).
//
// All have one size, ceil(global_batch / micro_batches) rows; a short last batch fills the first ones, and leaves the
// last ones short or empty. A rank has a run of them.

// Micro-batches begin, begin + 1, ... end - 1.
struct MicroBatchRange {
  int begin = 0;
  int end = 0;
  int count() const { return end - begin; }
  bool operator==(const MicroBatchRange&) const = default;
};

// The micro-batches of `rank`, shared out as evenly as can be: 8 over 3 ranks are [0, 2), [2, 5) and [5, 8).
// InvalidArgument if there are fewer micro-batches than ranks.
LOCKSTEP_API MicroBatchRange micro_batches_of(int micro_batches, int rank, int world);
// Rows of a full micro-batch. InvalidArgument if one of the two is below 1, or global_batch above 2^40.
LOCKSTEP_API std::int64_t micro_batch_rows(std::int64_t global_batch, int micro_batches);

// A run of rows.
struct RowRange {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

// Rank `rank`'s rows when `rows` are split as PyTorch's chunk(world) does: pieces of ceil(rows / world), the last one
// short, ranks beyond it without any. 30 over 8 is seven times 4 and 2; 10 over 8 is five times 2, three ranks empty.
LOCKSTEP_API RowRange chunk(std::int64_t rows, int rank, int world);

// Rank `rank`'s rows of a batch of `rows`, when a full one of `global_batch` is `micro_batches` fixed micro-batches.
LOCKSTEP_API RowRange rows_in_micro_batches(std::int64_t rows, std::int64_t global_batch, int micro_batches, int rank,
                                            int world);

// A place in a run's data, equal on all ranks; knows nothing of their number. Keep it in a checkpoint.
struct SamplerState {
  std::int64_t length = 0;  // samples in an epoch
  std::uint64_t seed = 0;
  std::uint64_t order = 0;  // EpochOrder::digest()
  std::int64_t epoch = 0;
  std::int64_t consumed = 0;  // the first samples of the epoch's order, by all ranks together; `length`: it is over
  bool operator==(const SamplerState&) const = default;
};

// What has a rank and a number of ranks: a ProcessGroup.
template <typename G>
concept RankOfGroup = requires(const G& group) {
  { group.rank() } -> std::convertible_to<int>;
  { group.size() } -> std::convertible_to<int>;
};

// One rank's rows of each epoch, in batches. Indices are into the dataset and double as global sample ids. Batches are
// those of a pass: from the epoch's beginning, or from the place given to resume(), to the epoch's end.
//
// Threads: several may call the const functions at once; the others are for one thread while nobody else is inside.
// Failure: InvalidArgument for a number out of its range, also from constructors.
class LOCKSTEP_API Sampler {
 public:
  virtual ~Sampler() = default;

  // Goes to the beginning of an epoch, which is equal on all ranks. A new sampler is at the beginning of epoch 0.
  void set_epoch(std::int64_t epoch);
  // Continues after the samples that another run has consumed, at any number of ranks and any batch size.
  // InvalidArgument if that run had another length, seed or order.
  void resume(const SamplerState& state);
  // InvalidArgument where resume() would throw it.
  void require_place(const SamplerState& state) const;
  // The place after that many batches of this pass.
  SamplerState state_after(std::int64_t batches) const;

  // Batches that every rank gets in this pass: equal on all ranks.
  std::int64_t num_batches() const;
  // Batches of a pass that begins after the first `consumed` samples of an epoch; with 0 those of a whole epoch.
  std::int64_t num_batches_after(std::int64_t consumed) const;
  // This rank's rows of batch `index` (0 <= index < num_batches), in order. May be empty.
  std::vector<std::int64_t> batch(std::int64_t index) const;
  // Rows of all ranks together in a batch that is not the last.
  virtual std::int64_t global_batch() const = 0;

  const EpochOrder& order() const { return order_; }
  // The rank that it reads for, and the number of ranks.
  int rank() const { return rank_; }
  int world() const { return world_; }
  // The numbers that decide, besides the rank, which samples batch() returns: names and values, which have to be the
  // same on all ranks. For DistributedDataParallel::watch().
  std::vector<std::pair<std::string, std::uint64_t>> identity() const;

 protected:
  // A rank's rows of a batch: first, first + stride, ... after the batch's first position in the epoch's order. Those
  // past the epoch's end come from its front.
  struct Rows {
    std::int64_t first = 0;
    std::int64_t stride = 1;
    std::int64_t count = 0;
  };

  // `batch_rows`, at least 1, is the value of `option`, and counts the rows of `whose`.
  Sampler(const char* name, EpochOrder order, int rank, int world, std::int64_t batch_rows, const char* option,
          const char* whose);
  // Rows of a batch that is not the last, as the option counts them.
  std::int64_t batch_rows() const { return batch_rows_; }

 private:
  // When `left` samples of the epoch are left: the batches in them, and this rank's rows of the next.
  virtual std::int64_t batches_in(std::int64_t left) const = 0;
  virtual Rows next_rows(std::int64_t left) const = 0;
  // How it treats a number of samples that batches or ranks don't divide.
  virtual std::uint64_t remainder() const = 0;

  const char* name_;
  EpochOrder order_;
  int rank_;
  int world_;
  std::int64_t batch_rows_;
  std::int64_t start_ = 0;  // consumed before this pass
};

// How a dataset is dealt out whose length the ranks don't divide.
enum class Uneven : std::uint8_t {
  pad,    // samples from the epoch's front come twice: as many on every rank. PyTorch's default
  drop,   // the epoch's tail is left out: as many on every rank. PyTorch's drop_last
  exact,  // every sample once: some ranks have one more than others, and a last batch may have no rows. To evaluate
};

struct DistributedSamplerOptions {
  std::int64_t rows_per_rank = 0;  // rows of one rank in a batch; must be given
  bool shuffle = true;
  std::uint64_t seed = 0;  // equal on all ranks
  Uneven uneven = Uneven::pad;
};

// PyTorch's DistributedSampler (torch/utils/data/distributed.py): rank r reads positions r, r + world, r + 2 world, ...
// of the epoch. The last batch may be short.
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
  // The number of the `left` samples that `rank` gets.
  std::int64_t count_of(int rank, std::int64_t left) const;

  Uneven uneven_;
};

struct GlobalBatchSamplerOptions {
  std::int64_t global_batch = 0;  // rows of all ranks together in a batch; must be given
  bool shuffle = true;
  std::uint64_t seed = 0;  // equal on all ranks
  bool drop_last = false;  // leave out the last batch if it is short
  // The same bits at any number of ranks (ddp/reproducible.h): a batch is cut into this number of micro-batches, and
  // each rank has a run of them (micro_batches_of(), above). 0: each rank has its chunk() of a batch.
  int micro_batches = 0;
};

// The epoch is cut into global batches as one process would, and each is split over the ranks along dimension 0 (see
// chunk(), or as fixed micro-batches), so that a run computes the same at every world size. Every sample comes exactly
// once per epoch; every rank gets a batch for every step, of 0 rows if need be.
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
