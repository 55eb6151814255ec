// SPDX-License-Identifier: Apache-2.0
#include "lockstep/libtorch/samplers.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <fmt/format.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <optional>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/mutex.h"

namespace lockstep::libtorch {

struct RankSampler::State {
  // A sampler of `length` samples; `rows`: a rank's, where the options have no size.
  using Make = std::function<std::unique_ptr<data::Sampler>(std::int64_t length, std::int64_t rows)>;

  // A batch that was drawn: where it ends, and whether this rank has no rows of it.
  struct Drawn {
    data::SamplerState end;
    bool is_empty = false;
    std::int64_t audit = 0;
  };

  State(Make the_make, std::int64_t length, int the_world, std::int64_t global, std::int64_t rows,
        int the_micro_batches, int the_ranks_per_host)
      : make(std::move(the_make)),
        world(the_world),
        global_batch(global),
        rows_per_rank(rows),
        micro_batches(the_micro_batches),
        ranks_per_host(the_ranks_per_host),
        size(rows != 0 ? rows : 1),
        sampler(make(length, size)),
        taken(place()) {}

  // Rows of the last rank, which is the first to have none, in a batch of `rows`.
  std::int64_t rows_of_last_rank(std::int64_t rows) const {
    return micro_batches == 0 ? data::chunk(rows, world - 1, world).count
                              : data::rows_in_micro_batches(rows, global_batch, micro_batches, world - 1, world).count;
  }

  const Make make;
  const int world;
  const std::int64_t global_batch;   // 0: of a DistributedSampler
  const std::int64_t rows_per_rank;  // 0: of a GlobalBatchSampler, or the loader gives the number
  const int micro_batches;
  const int ranks_per_host;
  mutable Mutex mutex;
  // The pass: its sampler, which nothing moves but a new pass, and how many batches were drawn from it. `size`: rows of
  // a rank that it was made with.
  std::int64_t size GUARDED_BY(mutex);
  std::unique_ptr<data::Sampler> sampler GUARDED_BY(mutex);
  std::int64_t index GUARDED_BY(mutex) = 0;
  bool hands_out_every_batch GUARDED_BY(mutex) = false;
  std::deque<Drawn> drawn GUARDED_BY(mutex);   // and not handed out yet
  data::SamplerState taken GUARDED_BY(mutex);  // the place behind the batches handed out, if hands_out_every_batch
  mutable bool is_watched GUARDED_BY(mutex) = false;  // identity() was called
  std::int64_t audit GUARDED_BY(mutex) = 0;           // of the batch that was handed out last; 0: none
  // The next pass.
  std::int64_t next_epoch GUARDED_BY(mutex) = 0;
  std::optional<data::SamplerState> resumed GUARDED_BY(mutex);  // by resume(), since the last pass began
  bool is_asked_for GUARDED_BY(mutex) = false;                  // set_epoch() has named its epoch

  // Whether the next pass is the rest of the resumed one.
  bool goes_on() const REQUIRES(mutex) { return resumed && (is_asked_for || resumed->consumed < resumed->length); }
  // The place behind the drawn samples.
  data::SamplerState place() const REQUIRES(mutex) { return sampler->state_after(index); }
  void begin_pass() REQUIRES(mutex) {
    if (goes_on()) {
      sampler->resume(*resumed);
    } else {
      sampler->set_epoch(next_epoch);
      ++next_epoch;
    }
    resumed.reset();
    index = 0;
    drawn.clear();
    taken = place();
    audit = 0;
  }
  // The sampler of a loader with batches of `rows` rows per rank, at the place of this one.
  std::unique_ptr<data::Sampler> with_rows(std::int64_t rows) const REQUIRES(mutex) {
    auto other = make(sampler->order().size(), rows);
    other->resume(place());
    return other;
  }
  // The rest of the pass comes in batches of another size.
  void set_size(std::int64_t to) REQUIRES(mutex) {
    if (to == size) return;
    sampler = with_rows(to);
    index = 0;
    size = to;
  }
};

namespace {

using data::EpochOrder;
using State = RankSampler::State;

DistributedSamplerOptions with_rows(DistributedSamplerOptions options, std::int64_t rows) {
  options.rows_per_rank = rows;
  return options;
}
GlobalBatchSamplerOptions with_rows(const GlobalBatchSamplerOptions& options, std::int64_t) { return options; }

// Rows of a rank in a loader's batches of `batch_size`.
std::int64_t require_rows(const State& state, std::size_t batch_size) REQUIRES(state.mutex) {
  if (state.global_batch > 0 || state.rows_per_rank > 0) return state.size;
  if (batch_size > 0) return static_cast<std::int64_t>(batch_size);
  throw InvalidArgument(
      "DistributedSampler: the loader's batch size is 0, with which an epoch would never end; give a global batch of "
      "at least as many rows as there are ranks");
}

// The batches of a loader of `batch_size`, after the first `consumed` samples of an epoch.
std::size_t batches_after(const State& state, std::int64_t consumed, std::size_t batch_size) REQUIRES(state.mutex) {
  const std::int64_t rows = require_rows(state, batch_size);
  return static_cast<std::size_t>(rows == state.size ? state.sampler->num_batches_after(consumed)
                                                     : state.with_rows(rows)->num_batches_after(consumed));
}

// Makes samplers for any length.
template <typename Sampler, typename Options>
State::Make sampler_of_length(int rank, int world, const Options& options) {
  return [=](std::int64_t length, std::int64_t rows) -> std::unique_ptr<data::Sampler> {
    return std::make_unique<Sampler>(length, rank, world, with_rows(options, rows));
  };
}

// For an order, which has one length.
template <typename Sampler, typename Options>
State::Make sampler_of_order(const EpochOrder& order, int rank, int world, const Options& options) {
  return [=](std::int64_t length, std::int64_t rows) -> std::unique_ptr<data::Sampler> {
    if (length == order.size()) return std::make_unique<Sampler>(order, rank, world, with_rows(options, rows));
    throw InvalidArgument(fmt::format(
        "sampler: reset to {} samples was called, but the order has {}; make a new sampler for another dataset", length,
        order.size()));
  };
}

std::shared_ptr<State> shared_state(State::Make make, std::int64_t length, int world,
                                    const DistributedSamplerOptions& options) {
  return std::make_shared<State>(std::move(make), length, world, 0, options.rows_per_rank, 0, 1);
}
std::shared_ptr<State> shared_state(State::Make make, std::int64_t length, int world,
                                    const GlobalBatchSamplerOptions& options) {
  return std::make_shared<State>(std::move(make), length, world, options.global_batch, 0, options.micro_batches,
                                 options.ranks_per_host);
}

// Torch's loader ends at a batch without rows, while the other ranks are in it.
void refuse_empty_shares(const State& state) REQUIRES(state.mutex) {
  const std::int64_t left = state.sampler->order().size() - state.place().consumed;
  const std::int64_t full = left / state.global_batch;
  const std::int64_t last = state.sampler->num_batches() > full ? left % state.global_batch : 0;
  for (const std::int64_t rows : {full > 0 ? state.global_batch : 0, last}) {
    if (rows == 0 || state.rows_of_last_rank(rows) > 0) continue;
    throw InvalidArgument(
        fmt::format("GlobalBatchSampler: in epoch {} a batch has {} rows for {} ranks, which leaves some ranks "
                    "without, and torch's loader has no batches of 0 rows; take lockstep::libtorch::DataLoader, set "
                    "drop_last, or take another global_batch than {}",
                    state.sampler->order().epoch(), rows, state.world, state.global_batch));
  }
}

// Refuses audits with torch's own loader, which doesn't tell which batch it has handed out, and audits that no
// DistributedDataParallel knows of, which would train on the rows of other ranks.
void refuse_audits(const State& state) REQUIRES(state.mutex) {
  if (!state.sampler->has_audits()) return;
  if (!state.hands_out_every_batch) {
    throw InvalidArgument(
        "GlobalBatchSampler: audit_every is set with torch's loader, which does not say whether the batch that it "
        "handed out has an audit; take lockstep::libtorch::DataLoader, or leave audit_every out");
  }
  if (!state.is_watched) {
    throw InvalidArgument(
        "DataLoader: audit_every is set, and no DistributedDataParallel knows which rows are for audits; call "
        "ddp.watch(loader) before the loop");
  }
}

// The list of one epoch, which all copies of an order share: that of the epoch which was looked up last.
class RandpermList {
 public:
  RandpermList(std::int64_t length, std::uint64_t seed) : length_(length), seed_(seed) {}

  at::Tensor of_epoch(std::int64_t epoch) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (!list_.defined() || epoch != epoch_) {
      list_ = at::Tensor();  // two at a time would be twice the memory
      const auto generator = at::detail::createCPUGenerator(seed_ + static_cast<std::uint64_t>(epoch));
      list_ = at::randperm(length_, generator, at::kLong);
      epoch_ = epoch;
    }
    return list_;
  }

 private:
  const std::int64_t length_;
  const std::uint64_t seed_;
  Mutex mutex_;
  at::Tensor list_ GUARDED_BY(mutex_);
  std::int64_t epoch_ GUARDED_BY(mutex_) = 0;
};

}  // namespace

EpochOrder randperm_order(std::int64_t length, std::uint64_t seed) {
  const auto list = std::make_shared<RandpermList>(length, seed);
  return {length, seed, hash64("torch.randperm"), [list](std::int64_t epoch) {
            return [list, epoch](std::span<std::int64_t> positions) {
              const at::Tensor of_epoch = list->of_epoch(epoch);
              const auto* samples = of_epoch.data_ptr<std::int64_t>();
              for (std::int64_t& position : positions) position = samples[position];
            };
          }};
}

void RankSampler::set_epoch(std::int64_t epoch) {
  State& state = *state_;
  MutexLock lock(state.mutex);
  state.is_asked_for = state.resumed && epoch == state.resumed->epoch;
  if (state.is_asked_for) return;
  state.resumed.reset();
  state.next_epoch = epoch;
}

void RankSampler::resume(const data::SamplerState& place) {
  State& state = *state_;
  MutexLock lock(state.mutex);
  state.sampler->require_place(place);
  state.resumed = place;
  state.next_epoch = place.epoch + 1;
  state.is_asked_for = false;
}

data::SamplerState RankSampler::state() const {
  const State& state = *state_;
  MutexLock lock(state.mutex);
  if (state.resumed) return *state.resumed;
  return state.hands_out_every_batch ? state.taken : state.place();
}

std::size_t RankSampler::num_batches(std::size_t batch_size) const {
  MutexLock lock(state_->mutex);
  return batches_after(*state_, state_->goes_on() ? state_->resumed->consumed : 0, batch_size);
}

std::size_t RankSampler::batches_of_epoch(std::size_t batch_size) const {
  MutexLock lock(state_->mutex);
  return batches_after(*state_, 0, batch_size);
}

void RankSampler::reset(::torch::optional<std::size_t> new_length) {
  State& state = *state_;
  MutexLock lock(state.mutex);
  if (new_length && static_cast<std::int64_t>(*new_length) != state.sampler->order().size()) {
    state.sampler = state.make(static_cast<std::int64_t>(*new_length), state.size);
    state.resumed.reset();
  }
  refuse_audits(state);
  state.begin_pass();
  if (state.global_batch > 0 && !state.hands_out_every_batch) refuse_empty_shares(state);
}

::torch::optional<RankSampler::Index> RankSampler::next(std::size_t batch_size) {
  State& state = *state_;
  MutexLock lock(state.mutex);
  state.set_size(require_rows(state, batch_size));
  const data::Sampler& sampler = *state.sampler;
  if (state.index == sampler.num_batches()) return {};
  const std::int64_t begin = state.place().consumed;
  const std::int64_t audit = sampler.audit(state.index);
  std::vector<std::int64_t> rows = sampler.batch(state.index++);
  const bool is_empty = rows.empty();
  if (state.hands_out_every_batch) {
    state.drawn.push_back({state.place(), is_empty, audit});
    if (is_empty) rows.push_back(sampler.order()[begin]);
  } else if (is_empty) {
    return {};
  }
  return Index(rows.begin(), rows.end());
}

int RankSampler::rank() const {
  MutexLock lock(state_->mutex);
  return state_->sampler->rank();
}

int RankSampler::world() const { return state_->world; }

DataIdentity RankSampler::identity() const {
  {
    MutexLock lock(state_->mutex);
    state_->is_watched = true;
  }
  return [state = std::shared_ptr<const State>(state_)] {
    MutexLock lock(state->mutex);
    DataNumbers numbers = state->sampler->identity();
    if (state->sampler->has_audits()) {
      numbers.emplace_back(kAuditNumber, static_cast<std::uint64_t>(state->audit));
      numbers.emplace_back(kAuditRanksPerHost, static_cast<std::uint64_t>(state->ranks_per_host));
    }
    return numbers;
  };
}

void RankSampler::hand_out_every_batch() {
  MutexLock lock(state_->mutex);
  state_->hands_out_every_batch = true;
}

bool RankSampler::took_batch() {
  State& state = *state_;
  MutexLock lock(state.mutex);
  if (state.drawn.empty()) return true;
  const State::Drawn batch = state.drawn.front();
  state.drawn.pop_front();
  state.taken = batch.end;
  state.audit = batch.audit;
  return !batch.is_empty;
}

void RankSampler::save(::torch::serialize::OutputArchive& archive) const {
  const data::SamplerState place = state();
  const auto write = [&](const char* name, std::int64_t value) {
    archive.write(name, at::scalar_tensor(value, at::kLong), /*is_buffer=*/true);
  };
  write("length", place.length);
  write("seed", static_cast<std::int64_t>(place.seed));
  write("order", static_cast<std::int64_t>(place.order));
  write("epoch", place.epoch);
  write("consumed", place.consumed);
}

void RankSampler::load(::torch::serialize::InputArchive& archive) {
  const auto read = [&](const char* name) {
    at::Tensor value = at::empty({}, at::kLong);
    archive.read(name, value, /*is_buffer=*/true);
    return value.item<std::int64_t>();
  };
  resume({.length = read("length"),
          .seed = static_cast<std::uint64_t>(read("seed")),
          .order = static_cast<std::uint64_t>(read("order")),
          .epoch = read("epoch"),
          .consumed = read("consumed")});
}

DistributedSampler::DistributedSampler(std::size_t length, int rank, int world,
                                       const DistributedSamplerOptions& options)
    : RankSampler(shared_state(sampler_of_length<data::DistributedSampler>(rank, world, options),
                               static_cast<std::int64_t>(length), world, options)) {}

DistributedSampler::DistributedSampler(EpochOrder order, int rank, int world, const DistributedSamplerOptions& options)
    : RankSampler(shared_state(sampler_of_order<data::DistributedSampler>(order, rank, world, options), order.size(),
                               world, options)) {}

GlobalBatchSampler::GlobalBatchSampler(std::size_t length, int rank, int world,
                                       const GlobalBatchSamplerOptions& options)
    : RankSampler(shared_state(sampler_of_length<data::GlobalBatchSampler>(rank, world, options),
                               static_cast<std::int64_t>(length), world, options)) {}

GlobalBatchSampler::GlobalBatchSampler(EpochOrder order, int rank, int world, const GlobalBatchSamplerOptions& options)
    : RankSampler(shared_state(sampler_of_order<data::GlobalBatchSampler>(order, rank, world, options), order.size(),
                               world, options)) {}

GlobalBatchSamplerOptions GlobalBatchSampler::on_hosts_of(const ProcessGroup& group,
                                                          GlobalBatchSamplerOptions options) {
  options.ranks_per_host = 1;
  for (int rank = 0; rank < group.size(); ++rank) {
    options.ranks_per_host =
        std::max(options.ranks_per_host, static_cast<int>(rendezvous::ranks_beside(group.roster(), rank).size()));
  }
  return options;
}

}  // namespace lockstep::libtorch
