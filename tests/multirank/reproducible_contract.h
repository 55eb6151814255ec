// SPDX-License-Identifier: Apache-2.0
// Fixed micro-batches of both DistributedDataParallels: the same bits at any number of ranks, and what can't keep that
// is refused. With the Side of ddp_contract.h.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/data/sampler.h"
#include "tests/multirank/ddp_contract.h"
#include "tests/support/thrown_on.h"

namespace lockstep::testing {

template <typename Side>
class ReproducibleContract : public DdpContract<Side> {
 protected:
  using Ddp = typename decltype(Side::wrap(std::declval<typename Side::Net&>(), nullptr, {}))::element_type;

  static typename Side::Options in_micro_batches(int micro_batches, std::int64_t global_batch) {
    return {.reproducible = {.micro_batches = micro_batches, .global_batch = global_batch}};
  }
  // A step in which this rank has the rows `rows`. before(begin): ahead of each loss.
  static void step(Ddp& ddp, RowsOf rows, Loss kind = Loss::mean,
                   const std::function<void(std::int64_t begin)>& before = nullptr) {
    ddp.backward(rows.end - rows.begin, [&](std::int64_t begin, std::int64_t end) {
      if (before) before(begin);
      return DdpContract<Side>::loss_of(ddp(Side::rows(rows.begin + begin, rows.begin + end)), kind);
    });
  }
  // The rows of this rank's micro-batches, of `size` rows each.
  static RowsOf rows_of_rank(const ProcessGroup& group, int micro_batches, std::int64_t size) {
    const data::MicroBatchRange own = data::micro_batches_of(micro_batches, group.rank(), group.size());
    return {std::min(kRows, own.begin * size), std::min(kRows, own.end * size)};
  }
};

TYPED_TEST_SUITE_P(ReproducibleContract);

TYPED_TEST_P(ReproducibleContract, AnyNumberOfRanksAndWayToSendHasTheSameBits) {
  struct Step {
    Values gradients;
    double loss = 0;
    bool operator==(const Step&) const = default;
  };
  // Of 8 micro-batches of two rows the last is empty; of 5 of three rows it has two.
  const auto steps_of = [](int ranks, typename TypeParam::Options options, int micro_batches = 8, bool weighs = false) {
    options.reproducible = {.micro_batches = micro_batches, .global_batch = kRows};
    std::vector<Step> steps;
    TestFixture::on(ranks, options, [&](auto& net, auto& ddp) {
      for (int i = 0; i < 2; ++i) {
        TypeParam::clear(net);
        const RowsOf rows = TestFixture::rows_of_rank(*ddp.group(), micro_batches, micro_batches == 8 ? 2 : 3);
        ddp.backward(rows.end - rows.begin, [&](std::int64_t begin, std::int64_t end) {
          const auto loss =
              TestFixture::loss_of(ddp(TypeParam::rows(rows.begin + begin, rows.begin + end)), options.loss);
          if (weighs) ddp.set_weight(1 + (rows.begin + begin) % 5);
          return loss;
        });
        if (ddp.group()->rank() == 0) steps.push_back({TypeParam::gradients(net), ddp.last_loss().value()});
      }
      ddp.check_replicas();
    });
    return steps;
  };
  for (const Loss kind : {Loss::mean, Loss::sum}) {
    const auto alone = steps_of(1, {.loss = kind});
    const auto wanted = TestFixture::alone(kind);
    ASSERT_EQ(alone.size(), 2u);
    expect_near(alone[1].gradients, wanted.gradients);
    for (const int ranks : {2, 3, 5, 8}) EXPECT_EQ(steps_of(ranks, {.loss = kind}), alone) << ranks << " ranks";
    EXPECT_EQ(steps_of(3, {.buckets = {.cap_bytes = 0, .first_cap_bytes = 0}, .loss = kind}), alone);
    EXPECT_EQ(steps_of(3, {.loss = kind, .overlap = false}), alone);
    EXPECT_NE(steps_of(2, {.loss = kind}, 5), alone) << "the order of additions shows";
    const auto weighted = steps_of(1, {.loss = kind}, 8, /*weighs=*/true);
    for (const int ranks : {2, 3, 6}) EXPECT_EQ(steps_of(ranks, {.loss = kind}, 8, true), weighted) << ranks;
  }
}

// The weights of some ranks are as many as their rows.
TYPED_TEST_P(ReproducibleContract, AWeightWithinALossIsTheProgramsOwn) {
  TestFixture::on(2, TestFixture::in_micro_batches(4, 8), [&](auto&, auto& ddp) {
    const std::int64_t counted = ddp.group()->rank() == 0 ? 2 : 1;
    ddp.backward(4, [&](std::int64_t begin, std::int64_t end) {
      const auto loss = TestFixture::loss_of(ddp(TypeParam::rows(begin, end)), Loss::mean);
      ddp.set_weight(counted);
      return loss;
    });
    EXPECT_EQ(ddp.last_weight(), 6);
  });
}

TYPED_TEST_P(ReproducibleContract, AStepWithoutDataIsOneOfAllRanks) {
  TestFixture::on_ranks(TestFixture::in_micro_batches(4, 8), [&](auto& net, auto& ddp) {
    if (ddp.group()->rank() == 0) {
      TestFixture::step(ddp, {0, 2});
    } else {
      ddp.step_without_data();
    }
    EXPECT_EQ(ddp.last_weight(), 2);
    TypeParam::clear(net);
    ddp.set_weight(4);
    ddp.step_without_data();
    EXPECT_EQ(ddp.last_weight(), 0);
    EXPECT_EQ(ddp.steps(), 2);
  });
}

TYPED_TEST_P(ReproducibleContract, WithoutMicroBatchesTheSameLoopIsOneBackward) {
  TestFixture::on(2, {}, [&](auto&, auto& ddp) {
    int calls = 0;
    TestFixture::step(ddp, {0, ddp.group()->rank() == 0 ? 3 : 2}, Loss::mean, [&](std::int64_t) { ++calls; });
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(ddp.last_weight(), 5);
  });
}

TYPED_TEST_P(ReproducibleContract, WhatCanNotKeepTheBitsIsRefused) {
  struct Case {
    std::string text;
    std::function<void(typename TestFixture::Ddp&)> misuse;
    int ranks = 1;
  };
  const std::vector<Case> cases{
      {"the forward of fixed micro-batch 0 had 8 rows, but the micro-batch is rows 0 to 2",
       [](auto& ddp) {
         ddp.backward(8, [&](std::int64_t, std::int64_t) {
           return TestFixture::loss_of(ddp(TypeParam::rows(0, 8)), Loss::mean);
         });
       }},
      {"set_weight(4) was called before step 0 of 4 fixed micro-batches",
       [](auto& ddp) {
         ddp.set_weight(4);
         TestFixture::step(ddp, {0, 8});
       }},
      {"no_sync() was used in step 0, but a step of 4 fixed micro-batches adds up gradients by itself",
       [](auto& ddp) {
         const auto local = ddp.no_sync();
         TestFixture::step(ddp, {0, 8});
       }},
      {"still has the gradient of an earlier step at the first fixed micro-batch of a step; call zero_grad()",
       [](auto& ddp) {
         for (int i = 0; i < 2; ++i) TestFixture::step(ddp, {0, 8});
       }},
      {"rank 0 of 1 has 9 rows, but its 4 fixed micro-batches of 2 rows hold only 8",
       [](auto& ddp) {
         TestFixture::step(ddp, {0, 9});
       }},
      // As chunk() deals 5 rows: 3 and 2. Of micro-batches of 2 rows rank 0 has 4, rank 1 one.
      {"of the step's 5 rows, but fixed micro-batches of 2 rows give it",
       [](auto& ddp) {
         TestFixture::step(ddp, ddp.group()->rank() == 0 ? RowsOf{0, 3} : RowsOf{3, 5});
       },
       2}};
  for (const Case& c : cases) {
    const std::string told = error_of<InvalidArgument>([&] {
      TestFixture::on(c.ranks, TestFixture::in_micro_batches(4, 8), [&](auto&, auto& ddp) { c.misuse(ddp); });
    });
    expect_text(told, {c.text});
  }
}

TYPED_TEST_P(ReproducibleContract, WhatALossThrowsIsToldToAll) {
  const auto thrown = thrown_on(2, [](const std::shared_ptr<ProcessGroup>& group) {
    typename TypeParam::Net net;
    const auto ddp = TypeParam::wrap(net, group, TestFixture::in_micro_batches(4, 8));
    TestFixture::step(*ddp, {0, 4}, Loss::mean, [&](std::int64_t begin) {
      if (group->rank() == 1 && begin == 2) throw std::runtime_error("no such label");
    });
  });
  EXPECT_EQ(text_of(thrown[1]), "exception: no such label");
  expect_thrown<PeerLost>(
      thrown[0], {.kind = Cause::Kind::aborted, .rank = 1, .text = "failed in the backward of step 0: no such label"});
}

REGISTER_TYPED_TEST_SUITE_P(ReproducibleContract, AnyNumberOfRanksAndWayToSendHasTheSameBits,
                            AWeightWithinALossIsTheProgramsOwn, AStepWithoutDataIsOneOfAllRanks,
                            WithoutMicroBatchesTheSameLoopIsOneBackward, WhatCanNotKeepTheBitsIsRefused,
                            WhatALossThrowsIsToldToAll);

}  // namespace lockstep::testing
