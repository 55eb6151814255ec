// SPDX-License-Identifier: Apache-2.0
// The suite of the Reducer that every backend must pass: the same tests over the group of one, over shm, over hosts
// of two ranks each, and over NCCL on fakes. What is of one backend alone is in shm_test.cc and nccl_test.cc.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "lockstep/base/random.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/comm_hook.h"
#include "lockstep/ddp/reducer.h"
#include "tests/multirank/reducer/gradients.h"
#include "tests/support/rank_threads.h"

namespace lockstep::testing {

using Group = std::shared_ptr<ProcessGroup>;

// Three buckets of two, in reverse order of registration: (f,e), (d,c), (b,a).
inline const std::vector<ParameterSpec> kSix{{"a", DType::f32, {16}}, {"b", DType::f32, {2, 8}},
                                             {"c", DType::f32, {16}}, {"d", DType::f32, {16}},
                                             {"e", DType::f32, {3}},  {"f", DType::f32, {16}}};
inline const ReducerOptions kTwoEach{{.cap_bytes = 128, .first_cap_bytes = 128}};
inline const std::vector<int> kBackward{5, 4, 3, 2, 1, 0};

inline const std::vector<int> kWorldSizes =
    LOCKSTEP_TEST_RANKS_OF_HOST > 0 ? std::vector{3, 4} : std::vector{1, 2, 3, 4};

// The group's own all-reduce, by a hook that waits for nothing.
inline CommHook plain_hook() {
  return {"plain", [](const GradBucket& bucket) {
            return HookedBucket{.work = bucket.group->all_reduce(bucket.buffer), .finish = {}};
          }};
}

// A stream of the rank's own, as a program with kernels has it. On the CPU the only one.
struct Compute {
  explicit Compute(const Group& group) : stream(group->device()) { group->set_stream(stream); }
  Stream stream;
};

// `value` times the parameter's number plus one everywhere, last layer first.
inline void backward(const Group& group, Reducer& reducer, double value) {
  for (int p = static_cast<int>(reducer.parameters().size()) - 1; p >= 0; --p) {
    write_gradient(*group, reducer, p, value * (p + 1));
    reducer.mark_ready(p);
  }
}
inline float first(const Group& group, Reducer& reducer, int parameter) {
  return gradient_of(*group, reducer, parameter).front();
}
// A device knows the summed weight later than the host leaves finish_step.
inline void finish(const Group& group, Reducer& reducer, std::int64_t total) {
  EXPECT_EQ(reducer.finish_step(), group->device().kind == DeviceKind::cpu ? std::optional(total) : std::nullopt);
  EXPECT_EQ(reducer.total_weight(), total);
}

inline std::vector<int> shuffled(std::size_t n, std::uint64_t seed, std::uint64_t stream) {
  std::vector<int> order(n);
  std::iota(order.begin(), order.end(), 0);
  Generator random(seed, stream);
  for (std::size_t i = n; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

// The backend that the binary is built for; a world of one that has no NCCL is the group of one.
inline RankThreadsOptions suite_options(int ranks) {
  const std::string backend = LOCKSTEP_TEST_BACKEND;
  return {.backend = ranks == 1 && backend == "shm" ? "single" : backend};
}
inline void run_suite(int ranks, const RankBody& body) {
  run_ranks(
      ranks,
      [&](const Group& group) {
        const Compute compute(group);
        body(group);
      },
      suite_options(ranks));
}

// By the number of ranks.
class ReducerSuite : public ::testing::TestWithParam<int> {
 protected:
  void run(const RankBody& body) { run_suite(GetParam(), body); }
};

}  // namespace lockstep::testing
