// SPDX-License-Identifier: Apache-2.0
// The contract of DdpOptions::comm_hook, over both DistributedDataParallels: with the Side of ddp_contract.h.
#pragma once

#include <bit>
#include <cmath>
#include <set>
#include <stdexcept>

#include "lockstep/comm/values.h"
#include "lockstep/ddp/comm_hook.h"
#include "tests/multirank/ddp_contract.h"
#include "tests/support/thrown_on.h"

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
  using DdpContract<Side>::step;

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
  for (const int ranks : {1, 2, 3}) {
    for (const Loss kind : {Loss::mean, Loss::sum}) {
      TypeParam::run(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
        const Values wanted = TestFixture::trained(group, {.buckets = a_bucket_each(), .loss = kind});
        EXPECT_EQ(wanted.size(), 6u);
        EXPECT_EQ(TestFixture::trained(group, {.buckets = a_bucket_each(), .loss = kind, .comm_hook = plain_hook()}),
                  wanted)
            << ranks << " ranks";
      });
    }
  }
}

TYPED_TEST_P(CommHookContract, SixteenBitsAreCloseAndEqualOnAllRanks) {
  for (const Loss kind : {Loss::mean, Loss::sum}) {
    const Values wanted = TestFixture::alone(kind);
    for (const auto& [hook, bits] : {std::pair(bf16_compress_hook(), 8), std::pair(fp16_compress_hook(), 11)}) {
      for (const int ranks : {1, 2, 3}) {
        TypeParam::run(ranks, [&, hook = hook, bits = bits](const std::shared_ptr<ProcessGroup>& group) {
          const Values seen = TestFixture::trained(group, {.loss = kind, .comm_hook = hook});
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
  TestFixture::on(2, {.comm_hook = fp16_compress_hook()}, [&](auto& net, auto& ddp) {
    const auto loss = TestFixture::loss_of(ddp(TypeParam::rows(0, kRows)), Loss::mean);
    ddp.set_weight(std::int64_t{1} << (ddp.group()->rank() == 0 ? 40 : 39));
    ddp.backward(loss);
    expect_near(TypeParam::gradients(net), TestFixture::alone(), 2e-3);
  });
}

TYPED_TEST_P(CommHookContract, SeesEachBucketOnceAndInOrderOnEveryRank) {
  for (const int ranks : {1, 2, 3}) {
    TypeParam::run(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
      std::vector<std::string> seen;  // "step index parameter"
      const CommHook hook{"records", [&](const GradBucket& bucket) {
                            EXPECT_EQ(bucket.buckets, 6);
                            EXPECT_EQ(bucket.is_last(), bucket.index == 5);
                            EXPECT_EQ(bucket.group, group);
                            EXPECT_EQ(bucket.slices.size(), 1u);
                            const auto& slice = bucket.slices.front();
                            EXPECT_LE(slice.offset + slice.parameter.count(), bucket.buffer.count);
                            seen.push_back(std::to_string(bucket.step) + " " + std::to_string(bucket.index) + " " +
                                           slice.parameter.name);
                            return HookedBucket{.work = bucket.group->all_reduce(bucket.buffer), .finish = {}};
                          }};
      typename TypeParam::Net net;
      TypeParam::initialize(net);
      auto ddp = TypeParam::wrap(net, group, {.buckets = a_bucket_each(), .comm_hook = hook});
      const bool is_last = group->rank() == group->size() - 1;
      for (int i = 0; i < 2; ++i) {
        TypeParam::clear(net);
        {
          const auto local = ddp->no_sync();
          if (is_last) TestFixture::step(*ddp, {0, 5});
          EXPECT_TRUE(seen.empty());
        }
        if (is_last) {
          TestFixture::step(*ddp, {0, 5});
        } else {
          ddp->step_without_data();
        }
        std::set<std::string> names;
        std::string text;
        for (std::size_t index = 0; index < seen.size(); ++index) {
          EXPECT_TRUE(seen[index].starts_with(std::to_string(i) + " " + std::to_string(index) + " ")) << seen[index];
          names.insert(seen[index].substr(4));
          text += seen[index] + "\n";
        }
        EXPECT_EQ(seen.size(), 6u);
        EXPECT_EQ(names,
                  (std::set<std::string>{"a.weight", "a.bias", "b.weight", "b.bias", "side.weight", "side.bias"}));
        for (const std::string& other : all_gather_text(*group, text)) EXPECT_EQ(other, text);
        EXPECT_EQ(ddp->last_step().buckets.size(), 6u + TypeParam::kBucketsMore);
        seen.clear();
      }
    });
  }
}

TYPED_TEST_P(CommHookContract, NoopSendsNothingAndGivesBackThisRanksShard) {
  TestFixture::on(1, {.comm_hook = noop_hook()}, [&](auto& net, auto& ddp) {
    TestFixture::step(ddp, {0, kRows});
    expect_near(TypeParam::gradients(net), TestFixture::alone());
  });
  TestFixture::on(2, {.compare_every = 0, .comm_hook = noop_hook()}, [&](auto& net, auto& ddp) {
    const std::int64_t rank = ddp.group()->rank();
    const auto loss = TestFixture::loss_of(ddp(TypeParam::rows(0, kRows)), Loss::mean);
    ddp.set_weight(1 + 2 * rank);
    ddp.backward(loss);
    Values wanted = TestFixture::alone();
    for (auto& [name, values] : wanted) {
      for (float& value : values) value *= static_cast<float>(1 + 2 * rank) / 4;
    }
    expect_near(TypeParam::gradients(net), wanted);
    EXPECT_EQ(ddp.last_weight(), 4);
  });
}

TYPED_TEST_P(CommHookContract, ModulesOfTwoGroupsHaveHooksOfTheirOwn) {
  for (const int ranks : {1, 2, 3}) {
    TypeParam::run(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
      const std::shared_ptr<ProcessGroup> other = group->split(0);
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
        TestFixture::step(*first, part);
        TestFixture::step(*second, part);
        expect_near(TypeParam::gradients(one), TestFixture::alone());
        expect_near(TypeParam::gradients(two), TestFixture::alone(), 2e-3);
        EXPECT_TRUE(are_equal_on_ranks(*group, TypeParam::gradients(one)));
        EXPECT_TRUE(are_equal_on_ranks(*group, TypeParam::gradients(two)));
      }
    });
  }
}

TYPED_TEST_P(CommHookContract, OneThatThrowsIsNamedOnEveryRank) {
  const auto thrown = thrown_on(3, [](const std::shared_ptr<ProcessGroup>& group) {
    const CommHook hook{"mine", [&](const GradBucket& bucket) {
                          if (group->rank() == 1 && bucket.step == 1 && bucket.index == 2) {
                            throw std::runtime_error("no such codebook");
                          }
                          return HookedBucket{.work = bucket.group->all_reduce(bucket.buffer), .finish = {}};
                        }};
    typename TypeParam::Net net;
    TypeParam::initialize(net);
    auto ddp = TypeParam::wrap(net, group, {.buckets = a_bucket_each(), .comm_hook = hook});
    for (int i = 0; i < 3; ++i) TestFixture::step(*ddp, {0, 5});
  });
  const std::string own = "communication hook 'mine' (step 1, bucket 2) failed: no such codebook";
  EXPECT_EQ(text_of(thrown[1]), "exception: " + own);
  for (const std::size_t rank : {0u, 2u}) {
    expect_thrown<PeerLost>(
        thrown[rank], {.kind = Cause::Kind::aborted, .rank = 1, .text = "failed in the backward of step 1: " + own});
  }
}

REGISTER_TYPED_TEST_SUITE_P(CommHookContract, TheGroupsOwnSumHasTheBitsOfNoHook, SixteenBitsAreCloseAndEqualOnAllRanks,
                            AWeightIsNotOnTheWire, SeesEachBucketOnceAndInOrderOnEveryRank,
                            NoopSendsNothingAndGivesBackThisRanksShard, ModulesOfTwoGroupsHaveHooksOfTheirOwn,
                            OneThatThrowsIsNamedOnEveryRank);

}  // namespace lockstep::testing
