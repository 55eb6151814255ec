// SPDX-License-Identifier: Apache-2.0
#include "lockstep/libtorch/samplers.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <fmt/format.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/hash.h"

namespace lockstep::libtorch {

struct ShardSampler::State {
  using Make = std::function<std::unique_ptr<data::Sampler>(std::int64_t length)>;

  Make make;
  std::unique_ptr<data::Sampler> sampler;  // stands behind what has been drawn
  std::int64_t batch = 0;                  // rows of all ranks; 0: the loader says how many of this one
  std::int64_t drawn_size = 0;             // the batch size of the last that was drawn
  int world = 1;
  std::int64_t next_epoch = 0;
  bool is_resumed = false;    // no pass has begun since resume()
  bool is_asked_for = false;  // ... and set_epoch() has named its epoch

  // A batch that was drawn: where it ends, and whether this rank has no rows of it.
  struct Drawn {
    data::SamplerState end;
    bool is_empty = false;
  };
  bool hands_out_every_batch = false;
  std::deque<Drawn> drawn;   // and not handed out yet
  data::SamplerState taken;  // behind what was handed out, if every batch is
  data::SamplerState begun;  // where the pass began

  // Whether the next pass is what is left of the resumed one.
  bool goes_on() const { return is_resumed && (is_asked_for || taken.consumed < taken.length); }
  data::SamplerState place() const { return sampler->state_after(0, 1); }
  void go_to(const data::SamplerState& place) {
    sampler->resume(place);
    begin_pass();
  }
  void begin_epoch(std::int64_t epoch) {
    sampler->set_epoch(epoch);
    next_epoch = epoch + 1;
    begin_pass();
  }
  void begin_pass() {
    drawn.clear();
    begun = taken = place();
  }
  // What the sampler says when it stands at `there`.
  template <typename Ask>
  auto ask_at(data::SamplerState there, Ask ask) const {
    const data::SamplerState here = place();
    sampler->resume(there);
    const auto answer = ask(*sampler);
    sampler->resume(here);
    return answer;
  }
};

namespace {

using data::EpochOrder;
using State = ShardSampler::State;

EpochOrder order_of(std::int64_t length, bool shuffle, std::uint64_t seed) {
  return shuffle ? EpochOrder::shuffled(length, seed) : EpochOrder::in_order(length);
}

std::int64_t require_batch(const State& state, std::size_t batch_size) {
  if (state.batch > 0) return state.batch;
  if (batch_size > 0) return static_cast<std::int64_t>(batch_size);
  throw InvalidArgument(
      "DistributedSampler: a batch size of 0, of which an epoch has no end; is the global batch smaller than the "
      "number of ranks?");
}

// Of an order that has one length.
State::Make only(EpochOrder order, std::function<std::unique_ptr<data::Sampler>(EpochOrder)> make) {
  return [order = std::move(order), make = std::move(make)](std::int64_t length) {
    if (length != order.size()) {
      throw InvalidArgument(
          fmt::format("sampler: reset to {} samples, of an order of {}; make a sampler anew for another dataset",
                      length, order.size()));
    }
    return make(order);
  };
}

std::shared_ptr<State> state_of(State::Make make, std::int64_t length, int world, std::int64_t batch = 0) {
  auto state = std::make_shared<State>();
  state->sampler = make(length);
  state->make = std::move(make);
  state->world = world;
  state->batch = batch;
  state->begin_pass();
  return state;
}

std::int64_t checked(const BatchShardOptions& options) {
  if (options.batch >= 1) return options.batch;
  throw InvalidArgument(
      fmt::format("BatchShardSampler: batch is {}; give the rows of all ranks together, at least 1", options.batch));
}

// Torch's loader ends at a batch without rows, while the other ranks are in it. The last rank is the first to have
// none.
void refuse_empty_shares(const State& state) {
  const std::int64_t left = state.sampler->order().size() - state.place().consumed;
  const std::int64_t full = left / state.batch;
  const std::int64_t last = state.sampler->num_batches(state.batch) > full ? left % state.batch : 0;
  for (const std::int64_t rows : {full > 0 ? state.batch : 0, last}) {
    if (rows == 0 || data::chunk(rows, state.world - 1, state.world).count > 0) continue;
    throw InvalidArgument(
        fmt::format("BatchShardSampler: in epoch {} a batch has {} rows for {} ranks, which leaves some without, and "
                    "torch's loader has no batches of 0 rows; take lockstep::libtorch::DataLoader, set drop_last, or "
                    "take another batch than {}",
                    state.sampler->order().epoch(), rows, state.world, state.batch));
  }
}

}  // namespace

EpochOrder randperm_order(std::int64_t length, std::uint64_t seed) {
  return {length, seed, hash64("torch.randperm"), [length, seed](std::int64_t epoch) {
            const auto generator = at::detail::createCPUGenerator(seed + static_cast<std::uint64_t>(epoch));
            const at::Tensor list = at::randperm(length, generator, at::kLong);
            return [list](std::span<std::int64_t> positions) {
              const auto* samples = list.data_ptr<std::int64_t>();
              for (std::int64_t& position : positions) position = samples[position];
            };
          }};
}

void ShardSampler::set_epoch(std::int64_t epoch) {
  State& state = *state_;
  state.is_asked_for = state.is_resumed && epoch == state.taken.epoch;
  if (state.is_asked_for) return;
  state.is_resumed = false;
  state.next_epoch = epoch;
}

void ShardSampler::resume(const data::SamplerState& place) {
  State& state = *state_;
  state.go_to(place);
  state.next_epoch = place.epoch + 1;
  state.is_resumed = true;
  state.is_asked_for = false;
}

data::SamplerState ShardSampler::state() const {
  return state_->hands_out_every_batch ? state_->taken : state_->place();
}

std::size_t ShardSampler::num_batches(std::size_t batch_size) const {
  State& state = *state_;
  const std::int64_t size = require_batch(state, batch_size);
  if (state.goes_on()) return static_cast<std::size_t>(state.sampler->num_batches(size));
  data::SamplerState beginning = state.place();
  beginning.consumed = 0;
  return static_cast<std::size_t>(
      state.ask_at(beginning, [&](const data::Sampler& sampler) { return sampler.num_batches(size); }));
}

void ShardSampler::reset(::torch::optional<std::size_t> new_length) {
  State& state = *state_;
  if (new_length && static_cast<std::int64_t>(*new_length) != state.sampler->order().size()) {
    state.sampler = state.make(static_cast<std::int64_t>(*new_length));
    state.is_resumed = false;
  }
  const bool goes_on = state.goes_on();
  state.is_resumed = false;
  if (goes_on) {
    state.go_to(state.taken);
  } else {
    state.begin_epoch(state.next_epoch);
  }
  if (state.batch > 0 && !state.hands_out_every_batch) refuse_empty_shares(state);
}

::torch::optional<ShardSampler::Index> ShardSampler::next(std::size_t batch_size) {
  State& state = *state_;
  state.is_resumed = false;
  const std::int64_t size = require_batch(state, batch_size);
  state.drawn_size = size;
  data::Sampler& sampler = *state.sampler;
  if (sampler.num_batches(size) == 0) return {};
  const data::SamplerState here = state.place();
  std::vector<std::int64_t> rows = sampler.batch(0, size);
  const bool is_empty = rows.empty();
  const data::SamplerState end = sampler.state_after(1, size);
  sampler.resume(end);
  if (state.hands_out_every_batch) {
    state.drawn.push_back({end, is_empty});
    if (is_empty) rows.push_back(sampler.order()[here.consumed]);
  } else if (is_empty) {
    return {};
  }
  return Index(rows.begin(), rows.end());
}

DataIdentity ShardSampler::identity() const {
  return [state = state_] {
    const std::int64_t size = std::max<std::int64_t>(state->drawn_size, 1);
    return state->ask_at(state->begun, [&](const data::Sampler& sampler) { return sampler.identity(size); });
  };
}

void ShardSampler::hand_out_every_batch() { state_->hands_out_every_batch = true; }

bool ShardSampler::took_batch() {
  State& state = *state_;
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
    : ShardSampler(state_of(
          [=](std::int64_t of) -> std::unique_ptr<data::Sampler> {
            return std::make_unique<data::DistributedSampler>(order_of(of, options.shuffle, options.seed), rank, world,
                                                              options.uneven);
          },
          static_cast<std::int64_t>(length), world)) {}

DistributedSampler::DistributedSampler(EpochOrder order, int rank, int world, Uneven uneven)
    : ShardSampler(state_of(only(order,
                                 [=](EpochOrder of) -> std::unique_ptr<data::Sampler> {
                                   return std::make_unique<data::DistributedSampler>(std::move(of), rank, world,
                                                                                     uneven);
                                 }),
                            order.size(), world)) {}

BatchShardSampler::BatchShardSampler(std::size_t length, int rank, int world, const BatchShardOptions& options)
    : ShardSampler(state_of(
          [=](std::int64_t of) -> std::unique_ptr<data::Sampler> {
            return std::make_unique<data::BatchShardSampler>(order_of(of, options.shuffle, options.seed), rank, world,
                                                             options.drop_last);
          },
          static_cast<std::int64_t>(length), world, checked(options))) {}

BatchShardSampler::BatchShardSampler(EpochOrder order, int rank, int world, const BatchShardOptions& options)
    : ShardSampler(state_of(only(order,
                                 [=](EpochOrder of) -> std::unique_ptr<data::Sampler> {
                                   return std::make_unique<data::BatchShardSampler>(std::move(of), rank, world,
                                                                                    options.drop_last);
                                 }),
                            order.size(), world, checked(options))) {}

}  // namespace lockstep::libtorch
