// SPDX-License-Identifier: Apache-2.0
// The contract of DdpOptions::comm_hook, over both DistributedDataParallels: with the Side of ddp_contract.h.
#pragma once

#include <bit>
#include <cstring>
#include <set>
#include <stdexcept>

#include "lockstep/comm/values.h"
#include "lockstep/ddp/comm_hook.h"
#include "tests/multirank/ddp_contract.h"
#include "tests/support/groups.h"

namespace lockstep::testing {

// The group's own all-reduce, by a hook that waits for nothing.
inline CommHook plain_hook() {
  return {"plain", [](const GradBucket& bucket) {
            return HookedBucket{.work = bucket.group->all_reduce(bucket.buffer), .finish = {}};
          }};
}

inline BucketOptions a_bucket_each() { return {.cap_bytes = 0, .first_cap_bytes = 0}; }

// Whether all ranks have the same bits.
inline bool are_equal_on_ranks(ProcessGroup& group, const Values& values) {
  std::string bytes;
  for (const auto& [name, numbers] : values) {
    bytes += name;
    for (const float number : numbers) bytes += " " + std::to_string(std::bit_cast<std::uint32_t>(number));
  }
  const std::vector<std::string> all = all_gather_text(group, bytes);
  return std::ranges::all_of(all, [&](const std::string& text) { return text == bytes; });
}

template <typename Side>
class CommHookContract : public DdpContract<Side> {
 protected:
  using typename DdpContract<Side>::Net;
  using typename DdpContract<Side>::Options;
  using typename DdpContract<Side>::Group;
  using DdpContract<Side>::loss_of;

  template <typename Ddp>
  static void step(Ddp& ddp, RowsOf part, Loss kind = Loss::mean) {
    ddp.backward(loss_of(ddp(Side::rows(part.begin, part.end)), kind));
  }
  // The gradients of the global batch after a step of two micro-batches.
  static Values trained(const Group& group, const Options& options) {
    Net net;
    Side::initialize(net);
    auto ddp = Side::wrap(net, group, options);
    const RowsOf all = part_of(group->rank(), group->size());
    const std::int64_t middle = (all.begin + all.end + 1) / 2;
    for (int i = 0; i < 2; ++i) {
      Side::clear(net);
      {
        const auto local = ddp->no_sync();
        step(*ddp, {all.begin, middle}, options.loss);
      }
      step(*ddp, {middle, all.end}, options.loss);
    }
    EXPECT_EQ(ddp->last_weight(), kRows);
    return Side::gradients(net);
  }
  static Values alone(Loss kind = Loss::mean, bool use_side = true) {
    return DdpContract<Side>::alone(kind, {0, kRows}, use_side).gradients;
  }
};

TYPED_TEST_SUITE_P(CommHookContract);

TYPED_TEST_P(CommHookContract, TheGroupsOwnSumHasTheBitsOfNoHook) {
  using Fixture = CommHookContract<TypeParam>;
  for (const int ranks : {1, 2, 3}) {
    for (const Loss kind : {Loss::mean, Loss::sum}) {
      TypeParam::run(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
        const Values wanted = Fixture::trained(group, {.buckets = a_bucket_each(), .loss = kind});
        EXPECT_EQ(wanted.size(), 6u);
        EXPECT_EQ(Fixture::trained(group, {.buckets = a_bucket_each(), .loss = kind, .comm_hook = plain_hook()}),
                  wanted)
            << ranks << " ranks";
      });
    }
  }
}

TYPED_TEST_P(CommHookContract, SixteenBitsAreCloseAndEqualOnAllRanks) {
  using Fixture = CommHookContract<TypeParam>;
  for (const Loss kind : {Loss::mean, Loss::sum}) {
    const Values wanted = Fixture::alone(kind);
    for (const auto& [hook, bits] : {std::pair(bf16_compress_hook(), 8), std::pair(fp16_compress_hook(), 11)}) {
      for (const int ranks : {1, 2, 3}) {
        TypeParam::run(ranks, [&, hook = hook, bits = bits](const std::shared_ptr<ProcessGroup>& group) {
          const Values seen = Fixture::trained(group, {.loss = kind, .comm_hook = hook});
          expect_near(seen, wanted, 2 * std::ldexp(1.0, -bits));
          EXPECT_TRUE(are_equal_on_ranks(*group, seen)) << hook.name;
          EXPECT_NE(seen, wanted) << hook.name << ": nothing was rounded";
        });
      }
    }
  }
}

// Of losses that are sums of many rows a float16 would not hold the gradients.
TYPED_TEST_P(CommHookContract, AWeightIsNotOnTheWire) {
  using Fixture = CommHookContract<TypeParam>;
  Fixture::on(2, {.comm_hook = fp16_compress_hook()}, [&](auto& net, auto& ddp) {
    const auto loss = Fixture::loss_of(ddp(TypeParam::rows(0, kRows)), Loss::mean);
    ddp.set_weight(std::int64_t{1} << (ddp.group()->rank() == 0 ? 40 : 39));
    ddp.backward(loss);
    expect_near(TypeParam::gradients(net), Fixture::alone(), 2e-3);
  });
}

struct SeenBucket {
  std::int64_t step;
  int index;
  std::vector<std::string> parameters;
  bool operator==(const SeenBucket&) const = default;
};

TYPED_TEST_P(CommHookContract, SeesEachBucketOnceAndInOrderOnEveryRank) {
  using Fixture = CommHookContract<TypeParam>;
  for (const int ranks : {1, 2, 3}) {
    TypeParam::run(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
      std::vector<SeenBucket> seen;
      const CommHook hook{"records", [&](const GradBucket& bucket) {
                            SeenBucket& it = seen.emplace_back(SeenBucket{bucket.step, bucket.index, {}});
                            EXPECT_EQ(bucket.buckets, 6);
                            EXPECT_EQ(bucket.is_last(), bucket.index == 5);
                            EXPECT_EQ(bucket.group, group);
                            for (const auto& slice : bucket.slices) {
                              EXPECT_LE(slice.offset + slice.parameter.count(), bucket.buffer.count);
                              it.parameters.push_back(slice.parameter.name);
                            }
                            return HookedBucket{.work = bucket.group->all_reduce(bucket.buffer), .finish = {}};
                          }};
      typename TypeParam::Net net;
      TypeParam::initialize(net);
      auto ddp = TypeParam::wrap(net, group, {.buckets = a_bucket_each(), .comm_hook = hook});
      const bool is_last = group->rank() == group->size() - 1;
      const auto step = [&] {
        seen.clear();
        if (is_last) return Fixture::step(*ddp, {0, 5});
        ddp->step_without_data();
      };
      for (std::int64_t i = 0; i < 2; ++i) {
        TypeParam::clear(net);
        {
          const auto local = ddp->no_sync();
          seen.clear();
          if (is_last) Fixture::step(*ddp, {0, 5});
          EXPECT_TRUE(seen.empty());
        }
        step();
        ASSERT_EQ(seen.size(), 6u);
        std::set<std::string> names;
        for (int index = 0; index < 6; ++index) {
          const SeenBucket& it = seen[static_cast<std::size_t>(index)];
          EXPECT_EQ(it.step, i);
          EXPECT_EQ(it.index, index);
          names.insert(it.parameters.begin(), it.parameters.end());
        }
        EXPECT_EQ(names,
                  (std::set<std::string>{"a.weight", "a.bias", "b.weight", "b.bias", "side.weight", "side.bias"}));
        std::string text;
        for (const SeenBucket& it : seen) text += it.parameters.front() + " ";
        for (const std::string& other : all_gather_text(*group, text)) EXPECT_EQ(other, text);
        EXPECT_EQ(ddp->last_step().buckets.size(), 6u + TypeParam::kBucketsMore);
      }
    });
  }
}

// What else travels with the gradients goes past the hook.
TYPED_TEST_P(CommHookContract, UnusedParametersAreFoundAllTheSame) {
  using Fixture = CommHookContract<TypeParam>;
  const Values wanted = Fixture::alone(Loss::mean, /*use_side=*/false);
  for (const int ranks : {1, 2, 3}) {
    Fixture::on(ranks, {.comm_hook = fp16_compress_hook()}, [&](auto& net, auto& ddp) {
      net.use_side = false;
      Fixture::step(ddp, part_of(ddp.group()->rank(), ddp.group()->size()));
      expect_near(TypeParam::gradients(net), wanted, 2e-3);
    });
  }
}

TYPED_TEST_P(CommHookContract, NoopSendsNothingAndGivesBackThisRanksShard) {
  using Fixture = CommHookContract<TypeParam>;
  Fixture::on(1, {.comm_hook = noop_hook()}, [&](auto& net, auto& ddp) {
    Fixture::step(ddp, {0, kRows});
    expect_near(TypeParam::gradients(net), Fixture::alone());
  });
  Fixture::on(2, {.compare_every = 0, .comm_hook = noop_hook()}, [&](auto& net, auto& ddp) {
    const std::int64_t rank = ddp.group()->rank();
    const auto loss = Fixture::loss_of(ddp(TypeParam::rows(0, kRows)), Loss::mean);
    ddp.set_weight(1 + 2 * rank);
    ddp.backward(loss);
    Values wanted = Fixture::alone();
    for (auto& [name, values] : wanted) {
      for (float& value : values) value *= static_cast<float>(1 + 2 * rank) / 4;
    }
    expect_near(TypeParam::gradients(net), wanted);
    EXPECT_EQ(ddp.last_weight(), 4);
  });
}

TYPED_TEST_P(CommHookContract, TwoModulesHaveHooksOfTheirOwn) {
  using Fixture = CommHookContract<TypeParam>;
  TypeParam::run(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    typename TypeParam::Net one, two;
    TypeParam::initialize(one);
    TypeParam::initialize(two);
    auto narrow = TypeParam::wrap(one, group, {.comm_hook = bf16_compress_hook()});
    auto wide = TypeParam::wrap(two, group, {});
    const RowsOf part = part_of(group->rank(), 2);
    for (int i = 0; i < 2; ++i) {
      TypeParam::clear(one);
      TypeParam::clear(two);
      Fixture::step(*narrow, part);
      Fixture::step(*wide, part);
      expect_near(TypeParam::gradients(one), Fixture::alone(), 1e-2);
      EXPECT_NE(TypeParam::gradients(one), TypeParam::gradients(two));
      expect_near(TypeParam::gradients(two), Fixture::alone());
    }
  });
}

inline std::vector<int> all_ranks(const ProcessGroup& group) {
  std::vector<int> ranks(static_cast<std::size_t>(group.size()));
  for (std::size_t i = 0; i < ranks.size(); ++i) ranks[i] = static_cast<int>(i);
  return ranks;
}

TYPED_TEST_P(CommHookContract, ModulesOfTwoGroupsHaveHooksOfTheirOwn) {
  using Fixture = CommHookContract<TypeParam>;
  for (const int ranks : {1, 2, 3}) {
    TypeParam::run(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
      const std::shared_ptr<ProcessGroup> other = make_group_beside(group, "other", all_ranks(*group));
      // The first module's gradients go over the second module's group.
      const CommHook across{"across", [&](const GradBucket& bucket) {
                              return HookedBucket{.work = other->all_reduce(bucket.buffer), .finish = {}};
                            }};
      typename TypeParam::Net one, two;
      TypeParam::initialize(one);
      TypeParam::initialize(two);
      auto first = TypeParam::wrap(one, group, {.buckets = a_bucket_each(), .comm_hook = across});
      auto second = TypeParam::wrap(two, other, {.buckets = a_bucket_each(), .comm_hook = fp16_compress_hook()});
      const RowsOf part = part_of(group->rank(), ranks);
      for (int i = 0; i < 2; ++i) {
        TypeParam::clear(one);
        TypeParam::clear(two);
        Fixture::step(*first, part);
        Fixture::step(*second, part);
        expect_near(TypeParam::gradients(one), Fixture::alone());
        expect_near(TypeParam::gradients(two), Fixture::alone(), 2e-3);
        EXPECT_TRUE(are_equal_on_ranks(*group, TypeParam::gradients(one)));
        EXPECT_TRUE(are_equal_on_ranks(*group, TypeParam::gradients(two)));
      }
    });
  }
}

// As between hosts: within each, then between one rank of each, and to the others.
TYPED_TEST_P(CommHookContract, AHookMaySumInLevels) {
  using Fixture = CommHookContract<TypeParam>;
  TypeParam::run(3, [&](const std::shared_ptr<ProcessGroup>& group) {
    const bool is_pair = group->rank() < 2, leads = group->rank() != 1;
    const auto near =
        make_group_beside(group, is_pair ? "pair" : "single", is_pair ? std::vector{0, 1} : std::vector{2});
    const auto leaders = leads ? make_group_beside(group, "leaders", {0, 2}) : nullptr;
    const CommHook levels{"levels", [&](const GradBucket& bucket) {
                            near->all_reduce(bucket.buffer).wait();
                            if (leads) leaders->all_reduce(bucket.buffer).wait();
                            return HookedBucket{.work = near->broadcast(bucket.buffer, 0), .finish = {}};
                          }};
    for (const Loss kind : {Loss::mean, Loss::sum}) {
      const Values seen = Fixture::trained(group, {.buckets = a_bucket_each(), .loss = kind, .comm_hook = levels});
      expect_near(seen, Fixture::alone(kind));
      EXPECT_TRUE(are_equal_on_ranks(*group, seen));
    }
  });
}

TYPED_TEST_P(CommHookContract, RanksWithDifferentHooksAreToldBoth) {
  TypeParam::run(3, [&](const std::shared_ptr<ProcessGroup>& group) {
    typename TypeParam::Net net;
    const auto wrap = [&](const CommHook& hook) {
      return outcome_of([&] { TypeParam::wrap(net, group, {.comm_hook = hook}); });
    };
    const bool is_first = group->rank() == 0;
    const std::string two = wrap(is_first ? bf16_compress_hook() : fp16_compress_hook());
    EXPECT_EQ(two.find("Mismatch: "), 0u) << two;
    EXPECT_NE(two.find("the communication hook: rank 0 has 'bf16_compress'; ranks 1 and 2 have 'fp16_compress'"),
              std::string::npos)
        << two;
    const std::string one = wrap(is_first ? CommHook{} : noop_hook());
    EXPECT_EQ(one.find("Mismatch: "), 0u) << one;
    EXPECT_NE(one.find("the communication hook: rank 0 has none; ranks 1 and 2 have 'noop'"), std::string::npos) << one;
  });
}

TYPED_TEST_P(CommHookContract, OneThatThrowsIsNamedOnEveryRank) {
  using Fixture = CommHookContract<TypeParam>;
  std::array<std::string, 3> thrown;
  const auto train = [&](const std::shared_ptr<ProcessGroup>& group) {
    const CommHook hook{"mine", [&](const GradBucket& bucket) {
                          if (group->rank() == 1 && bucket.step == 1 && bucket.index == 2) {
                            throw std::runtime_error("no such codebook");
                          }
                          return HookedBucket{.work = bucket.group->all_reduce(bucket.buffer), .finish = {}};
                        }};
    typename TypeParam::Net net;
    TypeParam::initialize(net);
    auto ddp = TypeParam::wrap(net, group, {.buckets = a_bucket_each(), .comm_hook = hook});
    for (int i = 0; i < 3; ++i) Fixture::step(*ddp, {0, 5});
  };
  const auto body = [&](const std::shared_ptr<ProcessGroup>& group) {
    try {
      train(group);
    } catch (const std::exception& error) {
      const bool is_consequence = dynamic_cast<const PeerLost*>(&error) != nullptr;
      thrown[static_cast<std::size_t>(group->rank())] =
          (is_consequence ? "PeerLost: " : "") + std::string(error.what());
      throw;
    }
  };
  EXPECT_ANY_THROW(TypeParam::run(3, body));
  const std::string own = "communication hook 'mine' (step 1, bucket 2) failed: no such codebook";
  EXPECT_EQ(thrown[1], own);
  for (const std::size_t rank : {0u, 2u}) {
    EXPECT_EQ(thrown[rank].find("PeerLost: "), 0u) << thrown[rank];
    for (const std::string& part : {std::string("rank 1"), std::string("failed in the backward of step 1"), own}) {
      EXPECT_NE(thrown[rank].find(part), std::string::npos) << thrown[rank];
    }
  }
}

REGISTER_TYPED_TEST_SUITE_P(CommHookContract, TheGroupsOwnSumHasTheBitsOfNoHook, SixteenBitsAreCloseAndEqualOnAllRanks,
                            AWeightIsNotOnTheWire, SeesEachBucketOnceAndInOrderOnEveryRank,
                            UnusedParametersAreFoundAllTheSame, NoopSendsNothingAndGivesBackThisRanksShard,
                            TwoModulesHaveHooksOfTheirOwn, ModulesOfTwoGroupsHaveHooksOfTheirOwn, AHookMaySumInLevels,
                            RanksWithDifferentHooksAreToldBoth, OneThatThrowsIsNamedOnEveryRank);

}  // namespace lockstep::testing
