// SPDX-License-Identifier: Apache-2.0
// Defines samplers, which compute the samples that a rank reads as pure functions of (length, rank, world, seed,
// epoch, position).
//
// Samplers need no communication: each rank computes its own part of the samples. The parts of the ranks complement
// each other, because length, world, seed and epoch are equal on all ranks. The order of an epoch does not depend on
// the machine or the world size, so a run can resume with another world size. After resume(), the ranks continue in the
// epoch's order after the samples that the earlier run has consumed.
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

// EpochOrder says which sample is at which position of an epoch.

// An EpochOrder is a pure function from (seed, epoch, position) to a sample, equal on all ranks and at every world
// size. Samplers distribute the positions over the ranks.
//
//   EpochOrder::shuffled(length, seed)                      each sample once
//   EpochOrder::weighted(weights, draws, seed)              with replacement
//   EpochOrder::shuffled(train.size(), seed).within(train)  of a subset, whose samples are listed in `train`
//
// Threads: several threads may call const functions of an EpochOrder at once; no other call may run during set_epoch().
//   Copies are independent.
class LOCKSTEP_API EpochOrder {
 public:
  // A Lookup replaces each position in `positions` by the sample at this position; the positions are in [0, size()).
  // Several threads may call a Lookup at once.
  using Lookup = std::function<void(std::span<std::int64_t> positions)>;
  using OfEpoch = std::function<Lookup(std::int64_t epoch)>;

  // Returns the order 0, 1, 2, ... Throws InvalidArgument for a length below 0.
  static EpochOrder in_order(std::int64_t length);
  // Returns an order in which each sample comes once per epoch, in the random order of a Permutation.
  static EpochOrder shuffled(std::int64_t length, std::uint64_t seed);
  // Returns an order of `draws` samples per epoch that are drawn with replacement: each draw is independent, and
  // gives sample i with probability weights[i] / sum(weights). The order takes 12 bytes of memory per weight.
  // Throws InvalidArgument if a weight is negative or not finite, if no weight is above 0, or if there are more
  // than 2^32 weights.
  static EpochOrder weighted(std::span<const double> weights, std::int64_t draws, std::uint64_t seed);
  // Makes an order from the program's function `of_epoch`, which must be pure and equal on all ranks. `digest` is a
  // digest of all inputs of `of_epoch` except seed and epoch; the ranks compare their digests to
  // detect different orders.
  EpochOrder(std::int64_t size, std::uint64_t seed, std::uint64_t digest, OfEpoch of_epoch);

  // Returns this order applied to a subset of a dataset: samples[i] replaces sample i. lookup() of the returned order
  // throws InvalidArgument if `samples` has no element i.
  EpochOrder within(std::vector<std::int64_t> samples) const;

  std::int64_t size() const { return size_; }  // number of samples in an epoch
  std::uint64_t seed() const { return seed_; }
  std::uint64_t digest() const { return digest_; }
  std::int64_t epoch() const { return epoch_; }
  // Sets the epoch whose order lookup() uses; a new EpochOrder has epoch 0. Throws InvalidArgument for an epoch
  // below 0.
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

// Samplers can cut a global batch into a fixed number of micro-batches that the program chooses. With fixed
// micro-batches, the computation on each micro-batch does not depend on the number of ranks (ddp/reproducible.h).
//
// Each fixed micro-batch has ceil(global_batch / micro_batches) rows. If the last batch of an epoch is short,
// its first micro-batches are full, and its last micro-batches are short or empty. Each rank has a run of
// consecutive micro-batches.

// MicroBatchRange stands for the consecutive micro-batches begin, begin + 1, ... end - 1.
struct MicroBatchRange {
  int begin = 0;
  int end = 0;
  int count() const { return end - begin; }
  bool operator==(const MicroBatchRange&) const = default;
};

// Returns the micro-batches of `rank` when `micro_batches` micro-batches are divided among `world` ranks as evenly as
// possible: for example, 8 micro-batches over 3 ranks are [0, 2), [2, 5) and [5, 8). Throws InvalidArgument if
// micro_batches is less than world.
LOCKSTEP_API MicroBatchRange micro_batches_of(int micro_batches, int rank, int world);
// Returns the number of rows in a full micro-batch. Throws InvalidArgument if an argument is below 1, or if
// `global_batch` is above 2^40.
LOCKSTEP_API std::int64_t micro_batch_rows(std::int64_t global_batch, int micro_batches);

// In an audit, each rank also computes a fixed micro-batch of another rank, to find processors that compute wrong
// values (docs/AUDITS.md). Audits are numbered from 1.

// RowRange is a run of consecutive rows.
struct RowRange {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

// Returns the rows of rank `rank` when `rows` rows are split like PyTorch's chunk(world), into pieces of ceil(rows /
// world) rows. The last piece may be shorter; if there are fewer pieces than ranks, the last ranks have no rows. For
// example, with 30 rows and 8 ranks, seven ranks have 4 rows and one rank has 2 rows; with 10 rows and 8 ranks, five
// ranks have 2 rows and three ranks have no rows.
LOCKSTEP_API RowRange chunk(std::int64_t rows, int rank, int world);

// Returns the micro-batch of another rank that `rank` computes in audit number `audit` of a full batch; the micro-batch
// has rows. From one audit to the next, the other rank changes, and then the micro-batch changes. If every host has
// `ranks_per_host` consecutive ranks, and there are several hosts, the other rank runs on another host. If there are
// more than two ranks, no two ranks compute micro-batches of each other in one audit, so that a rank with wrong results
// contradicts two ranks. REQUIRES: `world` is at least 2, each rank has rows in a full batch, and `audit` is at
// least 1.
LOCKSTEP_API int audited_micro_batch(std::int64_t global_batch, int micro_batches, int rank, int world,
                                     int ranks_per_host, std::int64_t audit);

// Returns the rows of rank `rank` in a batch of `rows` rows, when a full batch has `global_batch` rows in
// `micro_batches` fixed micro-batches.
LOCKSTEP_API RowRange rows_in_micro_batches(std::int64_t rows, std::int64_t global_batch, int micro_batches, int rank,
                                            int world);

// SamplerState records how far a run has got in its data. A SamplerState is equal on all ranks and does not depend on
// the number of ranks. Programs save the SamplerState in a checkpoint.
struct SamplerState {
  std::int64_t length = 0;  // number of samples in an epoch
  std::uint64_t seed = 0;
  std::uint64_t order = 0;  // EpochOrder::digest()
  std::int64_t epoch = 0;
  // The number of samples, counted from the beginning of the epoch's order, that all ranks together have consumed. The
  // epoch is over if `consumed` equals `length`.
  std::int64_t consumed = 0;
  bool operator==(const SamplerState&) const = default;
};

// RankOfGroup is a type with a rank and a number of ranks, such as ProcessGroup.
template <typename G>
concept RankOfGroup = requires(const G& group) {
  { group.rank() } -> std::convertible_to<int>;
  { group.size() } -> std::convertible_to<int>;
};

// A Sampler computes the rows of each epoch that one rank reads, in batches. A row is an index into the dataset; the
// index is also the global id of the sample. A pass goes from the beginning of an epoch, or from the place given to
// resume(), to the end of the epoch.
//
// Threads: several threads may call const functions of a Sampler at once; no other call may run during a call of a
//   non-const function.
// Failure: a Sampler's functions and constructors throw InvalidArgument if an argument is out of its range.
class LOCKSTEP_API Sampler {
 public:
  virtual ~Sampler() = default;

  // Moves the sampler to the beginning of epoch `epoch`, which must be equal on all ranks. A new sampler is at the
  // beginning of epoch 0.
  void set_epoch(std::int64_t epoch);
  // Moves the sampler to the place after the samples that an earlier run has consumed; the two runs may have different
  // numbers of ranks and different batch sizes. Throws InvalidArgument if the earlier run had another length,
  // seed or order.
  void resume(const SamplerState& state);
  // Throws InvalidArgument if resume(state) would throw InvalidArgument, and never changes the sampler.
  void require_place(const SamplerState& state) const;
  // Returns the place in the epoch after the first `batches` batches of this pass.
  SamplerState state_after(std::int64_t batches) const;

  // Returns the number of batches in this pass, which is equal on all ranks.
  std::int64_t num_batches() const;
  // Returns the number of batches in a pass that begins after the first `consumed` samples of an epoch.
  std::int64_t num_batches_after(std::int64_t consumed) const;
  // Returns this rank's rows of batch `index`, in the epoch's order; this rank may have no row in a batch. Throws
  // InvalidArgument unless 0 <= index < num_batches().
  std::vector<std::int64_t> batch(std::int64_t index) const;
  // Returns the number of the audit in batch `index`, or 0 if the batch has no audit. In a batch with an audit, batch()
  // returns the rows of audited_micro_batch() after this rank's own rows.
  std::int64_t audit(std::int64_t index) const { return audit_at(start_ + index * global_batch()); }
  // Returns whether some batches have audits.
  virtual bool has_audits() const { return false; }
  // Returns the number of rows that all ranks together have in a full batch; the last batch of an epoch may be shorter.
  virtual std::int64_t global_batch() const = 0;

  const EpochOrder& order() const { return order_; }
  // rank() returns the rank whose samples this sampler computes, and world() returns the number of ranks.
  int rank() const { return rank_; }
  int world() const { return world_; }
  // Returns the names and values of the numbers that decide, together with the rank, which samples batch() returns.
  // DistributedDataParallel::watch() compares the numbers that identity() returns over the ranks, because the numbers
  // must be equal on all ranks.
  std::vector<std::pair<std::string, std::uint64_t>> identity() const;

 protected:
  // Rows describes a rank's rows of a batch: the rows are at the `count` positions first, first + stride, ..., counted
  // from the beginning of the batch in the epoch's order. Positions past the end of the epoch stand for positions at
  // the beginning of the epoch.
  struct Rows {
    std::int64_t first = 0;
    std::int64_t stride = 1;
    std::int64_t count = 0;
  };

  // Makes a sampler whose batches have `batch_rows` rows, at least 1. Error messages use `option`, the name of the
  // option that set batch_rows, and `whose`, a text that says whether batch_rows counts the rows of one rank or of
  // all ranks.
  Sampler(const char* name, EpochOrder order, int rank, int world, std::int64_t batch_rows, const char* option,
          const char* whose);
  // Returns the number of rows in a full batch: the rows of one rank in a DistributedSampler, and the rows of all ranks
  // in a GlobalBatchSampler.
  std::int64_t batch_rows() const { return batch_rows_; }

 private:
  // If `left` samples of the epoch remain, batches_in() returns the number of batches that the remaining samples make,
  // and next_rows() returns this rank's rows of the next batch.
  virtual std::int64_t batches_in(std::int64_t left) const = 0;
  virtual Rows next_rows(std::int64_t left) const = 0;
  // audit_at() returns the number of the audit in the batch that begins at position `begin` of the epoch, or 0 if the
  // batch has no audit. audited_rows() returns the rows of another rank that this rank gets in audit number `audit`.
  virtual std::int64_t audit_at(std::int64_t /*begin*/) const { return 0; }
  virtual Rows audited_rows(std::int64_t /*audit*/) const { return {}; }
  // Returns a number that identifies how the sampler treats samples that can't be divided evenly among
  // batches or ranks.
  virtual std::uint64_t remainder() const = 0;

  const char* name_;
  EpochOrder order_;
  int rank_;
  int world_;
  std::int64_t batch_rows_;
  std::int64_t start_ = 0;  // number of samples consumed before this pass
};

// Uneven says how a DistributedSampler distributes the samples if the dataset's length is not a multiple of the number
// of ranks.
enum class Uneven : std::uint8_t {
  // Some samples from the beginning of the epoch come twice, so that every rank has equally many samples. PyTorch does
  // this by default.
  pad,
  // The last samples of the epoch are left out, so that every rank has equally many samples, like PyTorch's drop_last.
  drop,
  // Every sample comes exactly once per epoch: some ranks may have one sample more than other ranks, and the last batch
  // of a rank may have no rows. Evaluations should use `exact`.
  exact,
};

struct DistributedSamplerOptions {
  std::int64_t rows_per_rank = 0;  // number of rows of one rank in a batch; must be given
  bool shuffle = true;
  std::uint64_t seed = 0;  // seed of the shuffle, equal on all ranks
  Uneven uneven = Uneven::pad;
};

// DistributedSampler distributes samples like PyTorch's DistributedSampler (torch/utils/data/distributed.py): rank r
// reads positions r, r + world, r + 2 world, ... of the epoch. The last batch may be short.
class LOCKSTEP_API DistributedSampler final : public Sampler {
 public:
  DistributedSampler(std::int64_t length, int rank, int world, const DistributedSamplerOptions& options);
  // Ignores options.shuffle and options.seed, because `order` already decides the order of the samples.
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
  // Returns the number of samples that rank `rank` gets if `left` samples of the epoch remain.
  std::int64_t count_of(int rank, std::int64_t left) const;

  Uneven uneven_;
};

struct GlobalBatchSamplerOptions {
  std::int64_t global_batch = 0;  // number of rows of all ranks together in a batch; must be given
  bool shuffle = true;
  std::uint64_t seed = 0;  // seed of the shuffle, equal on all ranks
  bool drop_last = false;  // whether a short last batch is left out
  // The number of fixed micro-batches in a batch. With fixed micro-batches, results are bitwise equal for any number of
  // ranks (ddp/reproducible.h). Each rank has a run of consecutive micro-batches (micro_batches_of() above). If
  // `micro_batches` is 0, chunk() divides each batch among the ranks.
  int micro_batches = 0;
  // If `audit_every` is not 0, every audit_every-th full batch has an audit: each rank gets the rows of a micro-batch
  // of another rank after its own rows. The least value is 2. Audits need micro_batches and the loader of LibTorch
  // (docs/AUDITS.md).
  int audit_every = 0;
  int ranks_per_host = 1;  // the argument of audited_micro_batch(); LibTorch's sampler takes the number from the group
};

// GlobalBatchSampler cuts the epoch into global batches that do not depend on the world size, so that a run computes
// the same steps at every world size. Each global batch is split over the ranks along dimension 0, by chunk() or as
// fixed micro-batches. Every sample comes exactly once per epoch, unless drop_last is set. In every step each rank gets
// a batch, which may have 0 rows.
class LOCKSTEP_API GlobalBatchSampler final : public Sampler {
 public:
  GlobalBatchSampler(std::int64_t length, int rank, int world, const GlobalBatchSamplerOptions& options);
  // Ignores options.shuffle and options.seed, because `order` already decides the order of the samples.
  GlobalBatchSampler(EpochOrder order, int rank, int world, const GlobalBatchSamplerOptions& options);
  GlobalBatchSampler(std::int64_t length, const RankOfGroup auto& group, const GlobalBatchSamplerOptions& options)
      : GlobalBatchSampler(length, group.rank(), group.size(), options) {}
  GlobalBatchSampler(EpochOrder order, const RankOfGroup auto& group, const GlobalBatchSamplerOptions& options)
      : GlobalBatchSampler(std::move(order), group.rank(), group.size(), options) {}

  std::int64_t global_batch() const override { return batch_rows(); }
  bool has_audits() const override { return audit_every_ > 0; }

 private:
  std::int64_t audit_at(std::int64_t begin) const override;
  Rows audited_rows(std::int64_t audit) const override;
  std::int64_t batches_in(std::int64_t left) const override;
  Rows next_rows(std::int64_t left) const override;
  std::uint64_t remainder() const override {
    return 2 * static_cast<std::uint64_t>(micro_batches_) + (drop_last_ ? 1 : 0);
  }

  bool drop_last_;
  int micro_batches_;
  int audit_every_;
  int ranks_per_host_;
};

}  // namespace lockstep::data
