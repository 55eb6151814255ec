// SPDX-License-Identifier: Apache-2.0
// Shards of a Reducer, on every backend: an optimizer that keeps the state of its shard trains the weights of one that
// keeps all.
#include <cmath>
#include <optional>
#include <stdexcept>

#include "lockstep/base/error.h"
#include "tests/multirank/reducer/suite.h"
#include "tests/support/error_of.h"

namespace lockstep::testing::shards_test {
namespace {

const ReducerOptions kSharded{.buckets = kTwoEach.buckets, .shard = lockstep::Shard::optimizer};

double gradient_value(int rank, int step, int parameter, std::int64_t i) {
  return std::sin(1.0 + rank + 3 * step + 5 * parameter + 0.1 * static_cast<double>(i));
}

// Adagrad, from weights of 1. It lives in the host's memory, and is stepped by kernels in the group's stream.
struct Adagrad {
  explicit Adagrad(const std::vector<ParameterSpec>& specs) {
    for (const ParameterSpec& spec : specs) weights.emplace_back(spec.count(), 1.0f);
    squares.resize(specs.size());
  }
  // Reads the gradient of the shard and leaves the updated weights in its place. `state`: the shard's sums of squares.
  void step(const ProcessGroup& group, Reducer& reducer, const ParameterShard& shard, std::vector<float>& state) {
    state.resize(static_cast<std::size_t>(shard.end - shard.begin));
    float* const own = weights[static_cast<std::size_t>(shard.parameter)].data() + shard.begin;
    launch<float>(group.stream(), "adagrad", reducer.gradient<float>(shard.parameter) + shard.begin,
                  shard.end - shard.begin, [own, &state](float* gradient, std::int64_t count) {
                    for (std::int64_t i = 0; i < count; ++i) {
                      state[static_cast<std::size_t>(i)] += gradient[i] * gradient[i];
                      own[i] -= 0.1f * gradient[i] / (std::sqrt(state[static_cast<std::size_t>(i)]) + 1e-6f);
                      gradient[i] = own[i];
                    }
                  });
  }
  std::vector<std::vector<float>> weights;
  std::vector<std::vector<float>> squares;  // by parameter, or by shard
};

void backward_of(const Group& group, Reducer& reducer, int step, bool leaves_one_out = false) {
  for (const int p : kBackward) {
    if (leaves_one_out && p == 2) continue;
    write_gradient(*group, reducer, p, [&, rank = group->rank(), p, step](std::int64_t i) {
      return (rank + 1) * gradient_value(rank, step, p, i);
    });
    reducer.mark_ready(p);
  }
}

// The weights after six steps: with shards or without.
std::vector<std::vector<float>> trained(const Group& group, const ReducerOptions& options) {
  Reducer reducer(kSix, group, options);
  reducer.plan_order(kBackward);
  Adagrad adagrad(kSix);
  const bool is_sharded = options.shard == lockstep::Shard::optimizer;
  if (is_sharded) adagrad.squares.resize(reducer.shards(group->rank()).size());
  for (int step = 0; step < 6; ++step) {
    if (step % 3 == 2) {  // a micro-batch before
      reducer.begin_step({.weight = 2, .synchronize = false});
      backward_of(group, reducer, 100 + step);
      reducer.finish_step();
    }
    reducer.begin_step({.weight = group->rank() + 1});
    backward_of(group, reducer, step, step == 4 && group->rank() == 0);
    reducer.finish_step();
    std::size_t next = 0;
    const auto update = [&](const ParameterShard& shard) {
      adagrad.step(*group, reducer, shard, adagrad.squares[next++]);
    };
    if (is_sharded) {
      reducer.update_shards(update);
    } else {
      for (int p = 0; p < 6; ++p) update({p, 0, kSix[static_cast<std::size_t>(p)].count()});
    }
    EXPECT_EQ(next, adagrad.squares.size());
  }
  std::vector<std::vector<float>> result;
  for (int p = 0; p < 6; ++p) result.push_back(gradient_of(*group, reducer, p));
  return result;
}

TEST_P(ReducerSuite, AnOptimizerOfSharesTrainsTheSameWeights) {
  run([](const Group& group) {
    for (const bool tracks : {false, true}) {
      ReducerOptions options = kSharded;
      options.track_unused = tracks;
      const auto sharded = trained(group, options);
      options.shard = lockstep::Shard::none;
      const auto whole = trained(group, options);
      EXPECT_EQ(sharded, whole);
    }
  });
}

TEST_P(ReducerSuite, ShardsOfAllRanksAreEachElementOnce) {
  run([](const Group& group) {
    Reducer reducer(kSix, group, kSharded);
    std::vector<std::vector<int>> owners;
    for (const ParameterSpec& spec : kSix) owners.emplace_back(spec.count(), 0);
    for (int r = 0; r < group->size(); ++r) {
      for (const ParameterShard& shard : reducer.shards(r)) {
        for (std::int64_t i = shard.begin; i < shard.end; ++i) {
          ++owners[static_cast<std::size_t>(shard.parameter)][static_cast<std::size_t>(i)];
        }
      }
    }
    for (const std::vector<int>& of_parameter : owners) {
      for (const int count : of_parameter) EXPECT_EQ(count, 1);
    }
    // And gradients stay where they are.
    for (int step = 0; step < 3; ++step) {
      reducer.begin_step();
      for (int p = 0; p < 6; ++p) {  // against the planned order
        write_gradient(*group, reducer, p, 1);
        reducer.mark_ready(p);
      }
      reducer.finish_step();
    }
    EXPECT_EQ(reducer.plan_changes(), 0);
  });
}

TEST_P(ReducerSuite, ARankThatFailsInItsUpdateIsNamed) {
  run([](const Group& group) {
    std::optional<Reducer> reducer;
    const auto step = [&] {  // rank 0 may have failed before the others are through with theirs, or with a Reducer
      reducer.emplace(kSix, group, kSharded);
      reducer->begin_step();
      backward_of(group, *reducer, 0);
      reducer->finish_step();
      reducer->update_shards([&](const ParameterShard&) {
        if (group->rank() == 0) throw std::runtime_error("no room for the moments");
      });
      group->barrier().wait();
    };
    if (group->rank() == 0) {
      EXPECT_THROW(step(), std::runtime_error);
      EXPECT_THROW(reducer->begin_step(), std::runtime_error) << "sticky";
    } else {
      expect_text(error_of<PeerLost>(step),
                  {"rank 0 (host ", "failed in the update after step 0: no room for the moments"});
    }
  });
}

TEST_P(ReducerSuite, UpdatesItsShardsOnceBehindEachStep) {
  run([](const Group& group) {
    const auto nothing = [](const ParameterShard&) {};
    Reducer whole(kSix, group, kTwoEach);
    EXPECT_THROW(whole.update_shards(nothing), InvalidArgument);
    EXPECT_TRUE(whole.shards(0).empty());
    Reducer reducer(kSix, group, kSharded);
    EXPECT_THROW(reducer.update_shards(nothing), InvalidArgument) << "before the first step";
    reducer.begin_step();
    EXPECT_THROW(reducer.update_shards(nothing), InvalidArgument) << "within a step";
    backward_of(group, reducer, 0);
    reducer.finish_step();
    reducer.update_shards(nothing);
    EXPECT_THROW(reducer.update_shards(nothing), InvalidArgument) << "twice";
    reducer.begin_step({.weight = 1, .synchronize = false});
    backward_of(group, reducer, 1);
    reducer.finish_step();
    EXPECT_THROW(reducer.update_shards(nothing), InvalidArgument) << "behind a micro-batch";
  });
}

}  // namespace
}  // namespace lockstep::testing::shards_test
