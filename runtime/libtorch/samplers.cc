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

struct ShardSampler::State {
  using Make = std::function<std::unique_ptr<data::Sampler>(std::int64_t length)>;

  // A batch that was drawn: where it ends, and whether this rank has no rows of it.
  struct Drawn {
    data::SamplerState end;
    bool is_empty = false;
  };

  State(Make the_make, std::int64_t length, int the_world, std::int64_t the_batch, int the_shards)
      : make(std::move(the_make)),
        world(the_world),
        batch(the_batch),
        virtual_shards(the_shards),
        sampler(make(length)),
        taken(place()) {}

  // Rows of the last rank, which is the first to have none, in a batch of `rows`.
  std::int64_t rows_of_last_rank(std::int64_t rows) const {
    return virtual_shards == 0 ? data::chunk(rows, world - 1, world).count
                               : data::rows_in_shards(rows, batch, virtual_shards, world - 1, world).count;
  }

  const Make make;
  const int world;
  const std::int64_t batch;  // rows of all ranks; 0: the loader says how many of this one
  const int virtual_shards;
  mutable Mutex mutex;
  // The pass: its sampler, which nothing moves but a new pass, and how many batches of `size` were drawn from it.
  std::unique_ptr<data::Sampler> sampler GUARDED_BY(mutex);
  std::int64_t size GUARDED_BY(mutex) = 0;
  std::int64_t index GUARDED_BY(mutex) = 0;
  bool hands_out_every_batch GUARDED_BY(mutex) = false;
  std::deque<Drawn> drawn GUARDED_BY(mutex);   // and not handed out yet
  data::SamplerState taken GUARDED_BY(mutex);  // the place behind the batches handed out, if hands_out_every_batch
  // The next pass.
  std::int64_t next_epoch GUARDED_BY(mutex) = 0;
  std::optional<data::SamplerState> resumed GUARDED_BY(mutex);  // by resume(), since the last pass began
  bool is_asked_for GUARDED_BY(mutex) = false;                  // set_epoch() has named its epoch

  // Whether the next pass is the rest of the resumed one.
  bool goes_on() const REQUIRES(mutex) { return resumed && (is_asked_for || resumed->consumed < resumed->length); }
  // The place behind the drawn samples.
  data::SamplerState place() const REQUIRES(mutex) {
    return index == 0 ? sampler->state_after(0, 1) : sampler->state_after(index, size);
  }
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
  }
  // The rest of the pass comes in batches of another size.
  void set_size(std::int64_t to) REQUIRES(mutex) {
    if (to != size && index > 0) {
      sampler->resume(place());
      index = 0;
    }
    size = to;
  }
};

namespace {

using data::EpochOrder;
using State = ShardSampler::State;

std::int64_t require_batch(const State& state, std::size_t batch_size) {
  if (state.batch > 0) return state.batch;
  if (batch_size > 0) return static_cast<std::int64_t>(batch_size);
  throw InvalidArgument(
      "DistributedSampler: a batch size of 0, of which an epoch has no end; is the global batch smaller than the "
      "number of ranks?");
}

// Makes samplers for any length.
template <typename Sampler, typename... Arguments>
State::Make sampler_of_length(const Arguments&... arguments) {
  return [=](std::int64_t length) -> std::unique_ptr<data::Sampler> {
    return std::make_unique<Sampler>(length, arguments...);
  };
}

// For an order, which has one length.
template <typename Sampler, typename... Arguments>
State::Make sampler_of_order(const EpochOrder& order, const Arguments&... arguments) {
  return [=](std::int64_t length) -> std::unique_ptr<data::Sampler> {
    if (length == order.size()) return std::make_unique<Sampler>(order, arguments...);
    throw InvalidArgument(
        fmt::format("sampler: reset to {} samples, of an order of {}; make a sampler anew for another dataset", length,
                    order.size()));
  };
}

std::shared_ptr<State> shared_state(State::Make make, std::int64_t length, int world, std::int64_t batch = 0,
                                    int virtual_shards = 0) {
  return std::make_shared<State>(std::move(make), length, world, batch, virtual_shards);
}

std::int64_t checked(const BatchShardOptions& options) {
  if (options.batch >= 1) return options.batch;
  throw InvalidArgument(
      fmt::format("BatchShardSampler: batch is {}; give the rows of all ranks together, at least 1", options.batch));
}

// Torch's loader ends at a batch without rows, while the other ranks are in it.
void refuse_empty_shares(const State& state) REQUIRES(state.mutex) {
  const std::int64_t left = state.sampler->order().size() - state.place().consumed;
  const std::int64_t full = left / state.batch;
  const std::int64_t last = state.sampler->num_batches(state.batch) > full ? left % state.batch : 0;
  for (const std::int64_t rows : {full > 0 ? state.batch : 0, last}) {
    if (rows == 0 || state.rows_of_last_rank(rows) > 0) continue;
    throw InvalidArgument(
        fmt::format("BatchShardSampler: in epoch {} a batch has {} rows for {} ranks, which leaves some without, and "
                    "torch's loader has no batches of 0 rows; take lockstep::libtorch::DataLoader, set drop_last, or "
                    "take another batch than {}",
                    state.sampler->order().epoch(), rows, state.world, state.batch));
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

void ShardSampler::set_epoch(std::int64_t epoch) {
  State& state = *state_;
  MutexLock lock(state.mutex);
  state.is_asked_for = state.resumed && epoch == state.resumed->epoch;
  if (state.is_asked_for) return;
  state.resumed.reset();
  state.next_epoch = epoch;
}

void ShardSampler::resume(const data::SamplerState& place) {
  State& state = *state_;
  MutexLock lock(state.mutex);
  state.sampler->require_place(place);
  state.resumed = place;
  state.next_epoch = place.epoch + 1;
  state.is_asked_for = false;
}

data::SamplerState ShardSampler::state() const {
  const State& state = *state_;
  MutexLock lock(state.mutex);
  if (state.resumed) return *state.resumed;
  return state.hands_out_every_batch ? state.taken : state.place();
}

std::size_t ShardSampler::num_batches(std::size_t batch_size) const {
  const State& state = *state_;
  MutexLock lock(state.mutex);
  const std::int64_t consumed = state.goes_on() ? state.resumed->consumed : 0;
  return static_cast<std::size_t>(state.sampler->num_batches_behind(consumed, require_batch(state, batch_size)));
}

void ShardSampler::reset(::torch::optional<std::size_t> new_length) {
  State& state = *state_;
  MutexLock lock(state.mutex);
  if (new_length && static_cast<std::int64_t>(*new_length) != state.sampler->order().size()) {
    state.sampler = state.make(static_cast<std::int64_t>(*new_length));
    state.resumed.reset();
  }
  state.begin_pass();
  if (state.batch > 0 && !state.hands_out_every_batch) refuse_empty_shares(state);
}

::torch::optional<ShardSampler::Index> ShardSampler::next(std::size_t batch_size) {
  State& state = *state_;
  MutexLock lock(state.mutex);
  state.set_size(require_batch(state, batch_size));
  const data::Sampler& sampler = *state.sampler;
  if (state.index == sampler.num_batches(state.size)) return {};
  const std::int64_t begin = state.place().consumed;
  std::vector<std::int64_t> rows = sampler.batch(state.index++, state.size);
  const bool is_empty = rows.empty();
  if (state.hands_out_every_batch) {
    state.drawn.push_back({state.place(), is_empty});
    if (is_empty) rows.push_back(sampler.order()[begin]);
  } else if (is_empty) {
    return {};
  }
  return Index(rows.begin(), rows.end());
}

int ShardSampler::rank() const {
  MutexLock lock(state_->mutex);
  return state_->sampler->rank();
}

int ShardSampler::world() const { return state_->world; }

DataIdentity ShardSampler::identity() const {
  return [state = std::shared_ptr<const State>(state_)] {
    MutexLock lock(state->mutex);
    // Torch's loader tells a DistributedSampler its batch size with the first batch.
    return state->sampler->identity(state->batch > 0 ? state->batch : std::max<std::int64_t>(state->size, 1));
  };
}

void ShardSampler::hand_out_every_batch() {
  MutexLock lock(state_->mutex);
  state_->hands_out_every_batch = true;
}

bool ShardSampler::took_batch() {
  State& state = *state_;
  MutexLock lock(state.mutex);
  if (state.drawn.empty()) return true;
  const State::Drawn batch = state.drawn.front();
  state.drawn.pop_front();
  state.taken = batch.end;
  return !batch.is_empty;
}

void ShardSampler::save(::torch::serialize::OutputArchive& archive) const {
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

void ShardSampler::load(::torch::serialize::InputArchive& archive) {
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

DistributedSampler::DistributedSampler(std::size_t length, int rank, int world, const SamplerOptions& options)
    : ShardSampler(shared_state(sampler_of_length<data::DistributedSampler>(rank, world, options),
                                static_cast<std::int64_t>(length), world)) {}

DistributedSampler::DistributedSampler(EpochOrder order, int rank, int world, Uneven uneven)
    : ShardSampler(
          shared_state(sampler_of_order<data::DistributedSampler>(order, rank, world, uneven), order.size(), world)) {}

BatchShardSampler::BatchShardSampler(std::size_t length, int rank, int world, const BatchShardOptions& options)
    : ShardSampler(shared_state(sampler_of_length<data::BatchShardSampler>(
                                    rank, world,
                                    data::BatchShardSamplerOptions{.shuffle = options.shuffle,
                                                                   .seed = options.seed,
                                                                   .drop_last = options.drop_last,
                                                                   .virtual_shards = options.virtual_shards}),
                                static_cast<std::int64_t>(length), world, checked(options), options.virtual_shards)) {}

BatchShardSampler::BatchShardSampler(EpochOrder order, int rank, int world, const BatchShardOptions& options)
    : ShardSampler(shared_state(
          sampler_of_order<data::BatchShardSampler>(order, rank, world, options.drop_last, options.virtual_shards),
          order.size(), world, checked(options), options.virtual_shards)) {}

}  // namespace lockstep::libtorch
