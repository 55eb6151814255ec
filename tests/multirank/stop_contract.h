// SPDX-License-Identifier: Apache-2.0
// The agreed stop of both DistributedDataParallels, over the Sides of ddp_contract.h.
#pragma once

#include <csignal>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/stop.h"
#include "lockstep/comm/values.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/data/sampler.h"
#include "lockstep/metrics/metrics.h"
#include "tests/multirank/ddp_contract.h"

namespace lockstep::testing {

// Where in a pass of the loop's body a rank asks to stop.
enum class Phase { before_forward, before_backward, after_backward };

// A dataset of numbers.
struct Numbers {
  std::int64_t count;
  std::int64_t size() const { return count; }
  std::vector<std::int64_t> batch(std::span<const std::int64_t> ids) const { return {ids.begin(), ids.end()}; }
};

template <typename Side>
class StopContract : public DdpContract<Side> {
 protected:
  template <typename Ddp>
  static void step(Ddp& ddp, RowsOf rows) {
    Side::clear(ddp.module());
    DdpContract<Side>::step(ddp, rows);
  }
  // All ranks have done as many steps, and know why they stopped.
  template <typename Ddp>
  static void expect_agreed(Ddp& ddp, std::int64_t steps, const std::string& reason) {
    const std::vector<std::int64_t> all = all_gather_value(ddp.steps(), *ddp.group());
    for (const std::int64_t of_rank : all) EXPECT_EQ(of_rank, steps);
    EXPECT_EQ(ddp.should_stop(), reason);
    ddp.check_replicas();
  }
};

TYPED_TEST_SUITE_P(StopContract);

TYPED_TEST_P(StopContract, EndsAfterTheSameStepWhoeverAsksAndWhen) {
  std::mt19937 random(7);
  for (int round = 0; round < 30; ++round) {
    const int ranks = 1 + static_cast<int>(random() % 3), who = static_cast<int>(random()) & 0xff;
    const auto at = 1 + static_cast<std::int64_t>(random() % 6);
    const auto phase = static_cast<Phase>(random() % 3);
    SCOPED_TRACE("round " + std::to_string(round));
    TypeParam::run(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
      typename TypeParam::Net net;
      TypeParam::initialize(net);
      auto ddp = TypeParam::wrap(net, group, {});
      const auto may_ask = [&](Phase now) {
        if (group->rank() == who % ranks && now == phase && ddp->steps() == at) request_stop(*group, "enough");
      };
      const RowsOf part = part_of(group->rank(), ranks);
      const std::vector<RowsOf> batches(100, part);
      std::int64_t seen = 0;
      for (const RowsOf& rows : progress(batches, *ddp, {.total = 100})) {
        may_ask(Phase::before_forward);
        TypeParam::clear(net);
        const auto loss = TestFixture::loss_of((*ddp)(TypeParam::rows(rows.begin, rows.end)), Loss::mean);
        may_ask(Phase::before_backward);
        EXPECT_EQ(ddp->should_stop(), std::nullopt);
        const bool has_asked = group->rank() == who % ranks && ddp->steps() == at;
        EXPECT_EQ(should_stop(*group, StopView::this_rank).has_value(), has_asked);
        ddp->backward(loss);
        may_ask(Phase::after_backward);
        ++seen;
      }
      // It rides with the next backward.
      EXPECT_EQ(seen, at + 1);
      TestFixture::expect_agreed(*ddp, at + 1, "enough");
      EXPECT_EQ(ddp->exit_code(), 0) << "the program's own end";
    });
  }
}

TYPED_TEST_P(StopContract, WaitsForTheEndOfMicroBatchesAndForARankWithoutData) {
  TestFixture::on_ranks({}, [&](auto& net, auto& ddp) {
    const int last = ddp.group()->size() - 1, rank = ddp.group()->rank();
    const RowsOf part = TestFixture::part_of_rank(ddp);
    const std::vector<RowsOf> batches(20, part);
    int seen = 0;
    for (const RowsOf& rows : progress(batches, ddp)) {
      // Two micro-batches make a step; the last rank asks within the second step, and is without data in that.
      if (seen == 2 && rank == last) request_stop(*ddp.group(), "enough");
      const bool closes = seen % 2 == 1;
      {
        const auto local = ddp.no_sync(!closes);
        if (seen == 3 && rank == last) {
          ddp.step_without_data();
        } else {
          if (!closes) TypeParam::clear(net);
          ddp.backward(TestFixture::loss_of(ddp(TypeParam::rows(rows.begin, rows.end)), Loss::mean));
        }
      }
      ++seen;
    }
    EXPECT_EQ(seen, 4);
    TestFixture::expect_agreed(ddp, 2, "enough");
  });
}

TYPED_TEST_P(StopContract, StaysAndEndsWatchedLoadersInTheirPlace) {
  for (const int workers : {0, 2}) {
    TestFixture::on_ranks({}, [&](auto&, auto& ddp) {
      ProcessGroup& group = *ddp.group();
      data::DataLoader loader(Numbers{40}, data::GlobalBatchSampler(40, group, {.global_batch = 4}),
                              {.workers = workers});
      ddp.watch(loader);
      int seen = 0;
      const auto epoch = [&](std::int64_t number, int ask_at) {
        loader.set_epoch(number);
        for ([[maybe_unused]] const auto& ids : loader) {
          if (seen == ask_at && group.rank() == group.size() - 1) request_stop(group, "enough");
          TestFixture::step(ddp, TestFixture::part_of_rank(ddp));
          ++seen;
        }
      };
      epoch(0, -1);
      EXPECT_EQ(seen, 10);
      epoch(1, 12);
      EXPECT_EQ(seen, 13);
      const data::SamplerState place = loader.state();
      EXPECT_EQ(place.epoch, 1);
      EXPECT_EQ(place.consumed, 12);
      epoch(2, -1);
      for ([[maybe_unused]] const auto& ids : progress(loader, ddp)) ++seen;
      EXPECT_EQ(seen, 13) << "a loop after the stop has no passes";
      EXPECT_EQ(loader.state(), place);
      TestFixture::expect_agreed(ddp, 13, "enough");
      request_stop(group, "another reason");
      TestFixture::step(ddp, TestFixture::part_of_rank(ddp));
      TestFixture::expect_agreed(ddp, 14, "enough");
    });
  }
}

TYPED_TEST_P(StopContract, IsAgreedBehindAnEvaluation) {
  TestFixture::on_ranks({}, [&](auto&, auto& ddp) {
    ProcessGroup& group = *ddp.group();
    const std::vector<RowsOf> batches(6, TestFixture::part_of_rank(ddp));
    TestFixture::step(ddp, batches.front());
    Metrics metrics(group);
    int seen = 0;
    for (const RowsOf& rows : progress(batches, ddp, {.total = 6, .evaluates = true})) {
      metrics.add("rows", rows.end - rows.begin);
      if (seen == 2 && group.rank() == 0) request_stop(group, "enough");
      ++seen;
    }
    EXPECT_EQ(seen, group.rank() == 0 ? 3 : 6) << "each rank leaves by its own request";
    EXPECT_FALSE(ddp.should_stop());
    metrics.result();
    TestFixture::expect_agreed(ddp, 1, "enough");
    for (const RowsOf& rows : progress(batches, ddp)) FAIL() << rows.begin;
  });
}

TYPED_TEST_P(StopContract, ASignalOfTheProcessStopsAllForAnotherStart) {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
    // A shell ignores SIGINT for what it starts in the background, and what is ignored stays ignored.
    const auto before = std::signal(signal, SIG_DFL);
    TestFixture::on_ranks({}, [&](auto&, auto& ddp) {
      ProcessGroup& group = *ddp.group();
      stop_on_signals(group);
      const std::vector<RowsOf> batches(20, TestFixture::part_of_rank(ddp));
      int seen = 0;
      for (const RowsOf& rows : progress(batches, ddp)) {
        if (seen == 2) group.barrier().wait();  // the ranks are one process: all have their handlers
        if (seen == 2 && group.rank() == 0) std::raise(signal);
        TestFixture::step(ddp, rows);
        ++seen;
      }
      EXPECT_EQ(seen, 3);
      const std::string reason = ddp.should_stop().value_or("none");
      EXPECT_EQ(reason.rfind("rank ", 0), 0u) << reason;
      EXPECT_NE(reason.find(" got SIG"), std::string::npos) << reason;
      TestFixture::expect_agreed(ddp, 3, reason);
      EXPECT_EQ(ddp.exit_code(), 75);
      group.barrier().wait();  // no rank takes the handlers away while another has yet to see the signal
    });
    std::signal(signal, before);
  }
}

REGISTER_TYPED_TEST_SUITE_P(StopContract, EndsAfterTheSameStepWhoeverAsksAndWhen,
                            WaitsForTheEndOfMicroBatchesAndForARankWithoutData, StaysAndEndsWatchedLoadersInTheirPlace,
                            IsAgreedBehindAnEvaluation, ASignalOfTheProcessStopsAllForAnotherStart);

}  // namespace lockstep::testing
