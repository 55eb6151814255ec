// SPDX-License-Identifier: Apache-2.0
// The Reducer's sums over fixed micro-batches, bit by bit against the tree in one thread: for random numbers of
// micro-batches and ranks, gradients, weights and buckets. Built for a backend that shares memory, for one over a wire,
// and for NCCL over fakes.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "lockstep/data/sampler.h"
#include "lockstep/ddp/reducer.h"
#include "tests/multirank/reducer/suite.h"
#include "tests/support/error_of.h"
#include "tests/support/sanitized.h"
#include "tests/support/thrown_on.h"

namespace lockstep::testing::reducer_test {
namespace {

using Floats = std::vector<float>;

struct Case {
  int micro_batches = 1;
  int ranks = 1;
  std::int64_t global_batch = 0;
  std::vector<ParameterSpec> specs = {};
  BucketOptions buckets = {};
  Loss loss = Loss::mean;
  bool track_unused = false;
  std::uint64_t seed = 0;
  std::vector<int> hosts = {};

  std::string str() const {
    return std::to_string(micro_batches) + " micro-batches, " + std::to_string(ranks) + " ranks, seed " +
           std::to_string(seed);
  }
};

// Of very different sizes, so that the order of additions shows.
float gradient(const Case& it, int step, int micro_batch, std::size_t parameter, std::int64_t i) {
  Generator random(it.seed * 1000003 +
                   static_cast<std::uint64_t>(((step * 64 + micro_batch) * 16 + static_cast<int>(parameter))) * 4099 +
                   static_cast<std::uint64_t>(i));
  return random.normal() * std::exp2(static_cast<float>(random.below(24)) - 12);
}
// Some micro-batches lack a parameter, some have no rows.
bool is_used(const Case& it, int step, int micro_batch, std::size_t parameter) {
  return (static_cast<std::uint64_t>(step) * 7 + static_cast<std::uint64_t>(micro_batch) * 5 + parameter * 3 +
          it.seed) %
             6 !=
         0;
}
std::int64_t weight_of(const Case& it, int step, int micro_batch) {
  return static_cast<std::int64_t>((it.seed + static_cast<std::uint64_t>(step * 31 + micro_batch * 17)) % 9);
}

// Written anew: left half of a node, the largest power of two below its size.
Floats tree(const std::vector<Floats>& micro_batches, std::size_t begin, std::size_t end) {
  if (end - begin == 1) return micro_batches[begin];
  std::size_t half = 1;
  while (half * 2 < end - begin) half *= 2;
  Floats left = tree(micro_batches, begin, begin + half);
  const Floats right = tree(micro_batches, begin + half, end);
  for (std::size_t i = 0; i < left.size(); ++i) left[i] += right[i];
  return left;
}

Floats wanted(const Case& it, int step, std::size_t parameter) {
  std::vector<Floats> micro_batches;
  std::int64_t total = 0;
  const auto count = static_cast<std::size_t>(it.specs[parameter].count());
  for (int micro_batch = 0; micro_batch < it.micro_batches; ++micro_batch) {
    Floats values(count, 0.0f);
    total += weight_of(it, step, micro_batch);
    if (weight_of(it, step, micro_batch) > 0 && is_used(it, step, micro_batch, parameter)) {
      for (std::size_t i = 0; i < count; ++i)
        values[i] = gradient(it, step, micro_batch, parameter, static_cast<std::int64_t>(i));
    }
    micro_batches.push_back(std::move(values));
  }
  Floats sum = tree(micro_batches, 0, micro_batches.size());
  if (it.loss == Loss::mean && total > 0) {
    const bool is_power = std::has_single_bit(static_cast<std::uint64_t>(total));
    for (float& value : sum)
      value = is_power ? value * (1.0f / static_cast<float>(total)) : value / static_cast<float>(total);
  }
  return sum;
}

void run_step(const Case& it, int step, const Group& group, Reducer& reducer) {
  const data::MicroBatchRange run = data::micro_batches_of(it.micro_batches, group->rank(), group->size());
  for (int micro_batch = run.begin; micro_batch < run.end; ++micro_batch) {
    const std::int64_t weight = weight_of(it, step, micro_batch);
    reducer.begin_step({.weight = weight, .synchronize = micro_batch + 1 == run.end});
    EXPECT_TRUE(reducer.overwrites());
    for (std::size_t p = it.specs.size(); weight > 0 && p-- > 0;) {
      const int parameter = static_cast<int>(p);
      if (!is_used(it, step, micro_batch, p)) {
        if (p % 2 == 0) reducer.mark_unused(parameter);
        continue;  // or says nothing of it
      }
      launch<float>(group->stream(), "backward", reducer.gradient<float>(parameter), it.specs[p].count(),
                    [&it, step, micro_batch, p](float* values, std::int64_t count) {
                      for (std::int64_t i = 0; i < count; ++i) values[i] = gradient(it, step, micro_batch, p, i);
                    });
      reducer.mark_ready(parameter);
    }
    reducer.finish_step();
  }
}

void expect_tree(const Case& it) {
  run_ranks(
      it.ranks,
      [&](const Group& group) {
        const Compute compute(group);
        Reducer reducer(it.specs, group,
                        {.buckets = it.buckets,
                         .track_unused = it.track_unused,
                         .loss = it.loss,
                         .reproducible = {.micro_batches = it.micro_batches, .global_batch = it.global_batch}});
        for (int step = 0; step < 3; ++step) {
          run_step(it, step, group, reducer);
          for (std::size_t p = 0; p < it.specs.size(); ++p) {
            const Floats right = wanted(it, step, p);
            const Floats seen = gradient_of(*group, reducer, static_cast<int>(p));
            ASSERT_TRUE(right.empty() || std::memcmp(seen.data(), right.data(), right.size() * sizeof(float)) == 0)
                << it.str() << ", rank " << group->rank() << ", step " << step << ", " << it.specs[p].name;
          }
        }
      },
      {.hosts = it.hosts});
}

Case random_case(Generator& random, std::uint64_t seed) {
  Case it{.micro_batches = 1 + static_cast<int>(random.below(13)), .global_batch = 64, .seed = seed};
  it.ranks = 1 + static_cast<int>(random.below(static_cast<std::uint64_t>(std::min(it.micro_batches, 6))));
  for (std::uint64_t p = 0; p < 1 + random.below(6); ++p) {
    it.specs.push_back({"p" + std::to_string(p), DType::f32, {static_cast<std::int64_t>(random.below(150))}});
  }
  it.buckets = {.cap_bytes = random.below(1200), .first_cap_bytes = random.below(400)};
  it.loss = random.below(4) == 0 ? Loss::sum : Loss::mean;
  it.track_unused = random.below(2) == 0;
  return it;
}

TEST(ReproducibleReducer, AddsUpInOneTreeForAnyShardsAndRanks) {
  Generator random(11);
  const std::uint64_t cases = std::string(LOCKSTEP_TEST_BACKEND) != "nccl" ? 60 : kSanitized ? 8 : 30;
  for (std::uint64_t seed = 0; seed < cases; ++seed) {
    expect_tree(random_case(random, seed));
    if (HasFatalFailure()) return;
  }
}

#ifdef LOCKSTEP_TEST_HAS_HOSTS
TEST(ReproducibleReducer, AddsUpInOneTreeOverHostsOfAnySize) {
  Generator random(12);
  for (const std::vector<int>& hosts : std::vector<std::vector<int>>{{2, 2}, {1, 2}, {2, 1}, {3, 2}, {2, 2, 1}}) {
    Case it = random_case(random, 100 + hosts.size());
    it.hosts = hosts;
    it.ranks = 0;
    for (const int ranks : hosts) it.ranks += ranks;
    for (const int more : {0, 3}) {
      it.micro_batches = it.ranks + more;
      expect_tree(it);
    }
  }
}
#endif

TEST(ReproducibleReducer, RefusesWhatAddsUpInAnotherOrder) {
  struct Refusal {
    const char* text;
    ReducerOptions options;
    DType dtype = DType::f32;
  };
  const Reproducible two{.micro_batches = 2, .global_batch = 2};
  const std::vector<Refusal> refusals{
      {"1 micro-batches for 2 ranks", {.reproducible = {.micro_batches = 1, .global_batch = 1}}},
      {"at most 1048576", {.reproducible = {.micro_batches = (1 << 20) + 1, .global_batch = 1 << 21}}},
      {"threads is 0", {.reproducible = {.micro_batches = 2, .global_batch = 2, .threads = 0}}},
      {"communication hook 'bf16_compress' adds up in an order that depends on the number of ranks",
       {.comm_hook = bf16_compress_hook(), .reproducible = two}},
      {"would be rounded to 16 bits", {.reproducible = two}, DType::bf16}};
  run_ranks(2, [&](const Group& group) {
    for (const Refusal& it : refusals) {
      expect_text(error_of([&] { Reducer({{"p", it.dtype, {4}}}, group, it.options); }), {it.text});
    }
    Reducer reducer({{"p", DType::f32, {4}}}, group, {.reproducible = {.micro_batches = 5, .global_batch = 5}});
    expect_text(error_of([&] { reducer.begin_step({.synchronize = true}); }),
                {group->rank() == 1 ? "this rank's 3" : "this rank's 2", "got .synchronize = true"});
  });
}

// Of the sums that a rank keeps, and of the one in the arena.
TEST(ReproducibleReducer, ANanOfAnyShardIsRaised) {
  for (int bad = 0; bad < 7; ++bad) {
    const auto thrown = thrown_on(2, [&](const Group& group) {
      const Compute compute(group);
      Reducer reducer({{"a", DType::f32, {40}}, {"b", DType::f32, {3}}}, group,
                      {.not_finite = NotFinite::raise, .reproducible = {.micro_batches = 7, .global_batch = 7}});
      const data::MicroBatchRange run = data::micro_batches_of(7, group->rank(), 2);
      for (int step = 0; step < 50; ++step) {
        for (int micro_batch = run.begin; micro_batch < run.end; ++micro_batch) {
          reducer.begin_step({.weight = 1, .synchronize = micro_batch + 1 == run.end});
          for (const int p : {1, 0}) {
            const bool is_bad = step == 1 && micro_batch == bad && p == 1;
            launch<float>(group->stream(), "backward", reducer.gradient<float>(p), p == 0 ? 40 : 3,
                          [is_bad](float* values, std::int64_t count) {
                            std::fill_n(values, count, 1.0f);
                            if (is_bad) values[2] = NAN;
                          });
            reducer.mark_ready(p);
          }
          reducer.finish_step();
        }
        reducer.total_weight();
      }
    });
    const std::string owner = bad < 3 ? "0" : "1";
    for (const auto& error : thrown) {
      expect_text(text_of(error), {"NaN in rank " + owner + "'s gradient of 'b' in step 1"});
    }
  }
}

TEST(ReproducibleReducer, RanksThatWantOtherShardsAreTold) {
  run_ranks(2, [&](const Group& group) {
    const int micro_batches = 4 + group->rank();
    const std::string told = error_of<Mismatch>([&] {
      Reducer({{"p", DType::f32, {4}}}, group, {.reproducible = {.micro_batches = micro_batches, .global_batch = 8}});
    });
    EXPECT_NE(told.find("what is reproducible"), std::string::npos) << told;
    EXPECT_NE(told.find("5 fixed micro-batches, batch size 8, 1 threads"), std::string::npos) << told;
  });
}

}  // namespace
}  // namespace lockstep::testing::reducer_test
