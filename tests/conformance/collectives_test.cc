// SPDX-License-Identifier: Apache-2.0
// Every backend × world size × dtype, ranks as threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>

#include "tests/conformance/suite.h"
#include "tests/support/rank_threads.h"

namespace lockstep::testing::collectives_test {
namespace {

struct Place {
  const char* backend;
  int ranks;
  std::vector<int> hosts = {};  // the ranks of each
  int colors = 0;               // the suite runs on each of so many groups within that of all ranks; 0: on that itself
};

constexpr bool kIsShm = std::string_view(LOCKSTEP_TEST_BACKEND) == "shm";
constexpr bool kIsNccl = std::string_view(LOCKSTEP_TEST_BACKEND) == "nccl";

std::vector<std::tuple<Place, Memory>> cases() {
  if (kIsNccl) {
    return {{{"nccl", 1}, Memory::device},
            {{"nccl", 2}, Memory::user},
            {{"nccl", 2}, Memory::arena},
            {{"nccl", 3}, Memory::device},
            {{"nccl", 3, {}, 2}, Memory::device}};
  }
  // The backends over a wire share all that depends on the world's size, and on one host an arena is plain memory
  // there: two sizes show that the wire carries it. Over hosts it is memory that a host's ranks share.
  if (!kIsShm) {
    return {{{LOCKSTEP_TEST_BACKEND, 2}, Memory::user},
            {{LOCKSTEP_TEST_BACKEND, 3}, Memory::user},
            {{LOCKSTEP_TEST_BACKEND, 4, {2, 2}}, Memory::arena},
            {{LOCKSTEP_TEST_BACKEND, 6, {1, 3, 2}}, Memory::arena},
            {{LOCKSTEP_TEST_BACKEND, 4, {}, 2}, Memory::user},
            {{LOCKSTEP_TEST_BACKEND, 6, {3, 3}, 2}, Memory::arena}};  // colors 0 and 1 have 2 + 1 and 1 + 2 ranks
  }
  std::vector<std::tuple<Place, Memory>> result;
  for (const Memory memory : {Memory::user, Memory::arena}) {
    for (const int ranks : {1, 2, 3, 4, 8}) result.push_back({{LOCKSTEP_TEST_BACKEND, ranks}, memory});
    result.push_back({{"single", 1}, memory});
    result.push_back({{LOCKSTEP_TEST_BACKEND, 5, {}, 2}, memory});
  }
  return result;
}

class Collectives : public ::testing::TestWithParam<std::tuple<Place, Memory>> {
 protected:
  void on_every_rank(const std::function<void(ProcessGroup&, Memory)>& check) {
    const Place place = std::get<0>(GetParam());
    const Memory memory = std::get<1>(GetParam());
    run_ranks(place.ranks,
              [&](const std::shared_ptr<ProcessGroup>& group) {
                if (place.colors == 0) return check(*group, memory);
                check(*group->split(group->rank() % place.colors), memory);
              },
              {.backend = place.backend, .hosts = place.hosts});
  }
};

std::string name_of_case(const ::testing::TestParamInfo<Collectives::ParamType>& info) {
  const Place& place = std::get<0>(info.param);
  const Memory memory = std::get<1>(info.param);
  return std::string(place.backend) + "_" + std::to_string(place.ranks) +
         (place.hosts.empty() ? "" : "_on_" + std::to_string(place.hosts.size()) + "_hosts") +
         (place.colors == 0 ? "" : "_in_" + std::to_string(place.colors)) +
         (memory == Memory::arena    ? "_arena"
          : memory == Memory::device ? "_device"
                                     : "_user");
}

INSTANTIATE_TEST_SUITE_P(Backends, Collectives, ::testing::ValuesIn(cases()), name_of_case);

TEST_P(Collectives, Float32) {
  on_every_rank([](ProcessGroup& group, Memory memory) { check_dtype(group, DType::f32, memory); });
}
TEST_P(Collectives, Float64) {
  on_every_rank([](ProcessGroup& group, Memory memory) { check_dtype(group, DType::f64, memory); });
}
TEST_P(Collectives, BFloat16) {
  on_every_rank([](ProcessGroup& group, Memory memory) { check_dtype(group, DType::bf16, memory); });
}
TEST_P(Collectives, Float16) {
  on_every_rank([](ProcessGroup& group, Memory memory) { check_dtype(group, DType::f16, memory); });
}
TEST_P(Collectives, Int32) {
  on_every_rank([](ProcessGroup& group, Memory memory) { check_dtype(group, DType::i32, memory); });
}
TEST_P(Collectives, Int64) {
  on_every_rank([](ProcessGroup& group, Memory memory) { check_dtype(group, DType::i64, memory); });
}
TEST_P(Collectives, UInt8) {
  on_every_rank([](ProcessGroup& group, Memory memory) { check_dtype(group, DType::u8, memory); });
}
TEST_P(Collectives, Weights) { on_every_rank(check_weights); }
TEST_P(Collectives, SharesOfAReductionAreThoseOfTheWhole) { on_every_rank(check_shards); }
TEST_P(Collectives, Notes) { on_every_rank(check_notes); }
TEST_P(Collectives, Overlap) { on_every_rank(check_overlap); }
TEST_P(Collectives, Messages) { on_every_rank(check_messages); }
TEST_P(Collectives, Refusals) {
  on_every_rank([](ProcessGroup& group, Memory) { check_refusals(group); });
}
TEST_P(Collectives, Setup) {
  on_every_rank([](ProcessGroup& group, Memory) { check_setup(group); });
}

}  // namespace
}  // namespace lockstep::testing::collectives_test
