// SPDX-License-Identifier: Apache-2.0
// Ranks that differ, throw or leave: every other rank gets an error of its own, nobody hangs.
#include <gtest/gtest.h>

#include <cerrno>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/ddp/on_rank0.h"
#include "lockstep/job/cause.h"
#include "lockstep/metrics/metrics.h"
#include "lockstep/nn/nn.h"
#include "lockstep/train/distributed_data_parallel.h"
#include "lockstep/train/weights.h"
#include "runtime/autograd/node.h"
#include "tests/support/error_of.h"
#include "tests/support/messages.h"
#include "tests/support/rank_threads.h"
#include "tests/support/thrown_on.h"

namespace lockstep::testing::faults_test {
namespace {

using Kind = Cause::Kind;

// An operation whose backward throws.
Tensor thrower(const Tensor& x) {
  Tensor result = x.clone();
  autograd::record("thrower", result, {x},
                   [](const Tensor&, autograd::GradientSink&) { throw std::domain_error("no more luck"); });
  return result;
}

Tensor ones() { return Tensor::ones({2, 5}); }

// On rank 1, which catches it, in the second step. It may be heard before rank 0 has left the first.
TEST(Faults, AnExceptionInBackwardThatIsCaughtReachesTheOthersAtOnce) {
  struct Case {
    const char* text;
    std::function<void(DistributedDataParallel&)> fail;
  };
  for (const Case& c : {Case{") failed in the backward of step 1: no more luck",
                             [](auto& ddp) { ddp.backward(mean(thrower(ddp(ones())))); }},
                        Case{") failed in the backward of step 1: ", [](auto& ddp) { ddp.backward(ddp(ones())); }}}) {
    const auto thrown = thrown_on(2,
                                  [&](const std::shared_ptr<ProcessGroup>& group) {
                                    nn::Sequential model{nn::Linear(5, 4), nn::Linear(4, 2)};
                                    DistributedDataParallel ddp(model, group, {.buckets = {.cap_bytes = 0}});
                                    const auto step = [&] { ddp.backward(mean(ddp(ones()))); };
                                    try {
                                      step();
                                      if (group->rank() == 1) {
                                        EXPECT_NE(outcome_of([&] { c.fail(ddp); }), "nothing");
                                      }
                                      step();
                                      step();
                                    } catch (const PeerLost&) {
                                      EXPECT_THROW(step(), PeerLost);
                                      throw;
                                    }
                                  },
                                  {.timeout = std::chrono::minutes(10)});
    for (const auto& error : thrown) {
      expect_thrown<PeerLost>(error, {.kind = Kind::aborted, .rank = 1, .text = c.text});
    }
  }
}

TEST(Faults, AnExceptionOutsideOurCallsReachesTheOthersWithTheStepThatItUnwinds) {
  for (const bool is_in_step : {false, true}) {
    const auto thrown = thrown_on(2,
                                  [&](const std::shared_ptr<ProcessGroup>& group) {
                                    nn::Linear model(5, 2);
                                    DistributedDataParallel ddp(model, group);
                                    const auto backward = [&] { ddp.backward(mean(ddp(ones()))); };
                                    if (is_in_step) {
                                      const auto local = ddp.no_sync();
                                      backward();
                                    }
                                    if (group->rank() == 1) throw std::domain_error("no more luck");
                                    backward();
                                  },
                                  {.timeout = std::chrono::minutes(10)});
    expect_thrown<PeerLost>(thrown[0],
                            {.kind = is_in_step ? Kind::aborted : Kind::failed,
                             .rank = 1,
                             .text = is_in_step ? "failed in the middle of a step: an exception of the program"
                                                : "ended with an exception"});
    EXPECT_EQ(text_of(thrown[1]), "exception: no more luck");
  }
}

TEST(Faults, AReplicaCheckThatOneRankRefusesReachesTheOthersWithTheReason) {
  struct Growing : nn::Module {
    nn::Linear first = register_module("first", nn::Linear(5, 2));
    void grow() const { register_module("second", nn::Linear(2, 2)); }
    Tensor forward(const Tensor& x) override { return first(x); }
  };
  const auto thrown = thrown_on(2,
                                [](const std::shared_ptr<ProcessGroup>& group) {
                                  Growing model;
                                  const DistributedDataParallel ddp(model, group);
                                  if (group->rank() == 1) model.grow();
                                  ddp.check_replicas();
                                },
                                {.timeout = std::chrono::minutes(10)});
  expect_thrown<PeerLost>(
      thrown[0],
      {.kind = Kind::aborted, .rank = 1, .text = "failed in the replica check of step 0: DistributedDataParallel: "});
}

TEST(Faults, AnExceptionInAForwardThatIsCaughtCostsNothing) {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    nn::Linear model(5, 2);
    DistributedDataParallel ddp(model, group);
    if (group->rank() == 1) {
      EXPECT_THROW(ddp(Tensor::ones({2, 3})), InvalidArgument);
    }
    EXPECT_EQ(ddp.backward(mean(ddp(ones()))), 4);
  });
}

TEST(Faults, AWorldOfOneGoesOnAfterAnException) {
  run_ranks(1, [](const std::shared_ptr<ProcessGroup>& group) {
    nn::Linear alone(5, 2);
    alone.initialize(3);
    nn::Linear model(5, 2);
    model.initialize(3);
    DistributedDataParallel ddp(model, group);
    backward(mean(alone(ones())));
    const auto expect_good_step = [&] {
      EXPECT_EQ(ddp.backward(mean(ddp(ones()))), 2);
      EXPECT_EQ(model.parameters()[0].grad().to_vector(), alone.parameters()[0].grad().to_vector());
      model.zero_grad();
    };
    const auto micro_batch = [&] {
      const auto local = ddp.no_sync();
      ddp.backward(mean(ddp(ones())));
    };
    for (int step = 0; step < 2; ++step) {
      EXPECT_THROW(ddp.backward(mean(thrower(ddp(ones())))), std::domain_error);
      expect_good_step();
      micro_batch();
      EXPECT_THROW(ddp.backward(mean(thrower(ddp(ones())))), std::domain_error);
      expect_good_step();
      micro_batch();
      EXPECT_THROW(ddp(Tensor::ones({2, 3})), InvalidArgument);
      expect_good_step();
    }
    EXPECT_EQ(ddp.steps(), 6);
  });
}

// The others may be gone, and have unwound their groups, before the last one has heard.
TEST(Faults, WhatFailsOnRankZeroIsNeverBlamedOnWhoHearsOfIt) {
  for (int round = 0; round < 50; ++round) {
    const auto thrown = thrown_on(3, [](const std::shared_ptr<ProcessGroup>& group) {
      on_rank0(
          "save_weights", []() -> std::string { throw SystemError("writing 'w': write", ENOSPC); }, *group);
    });
    ASSERT_NE(thrown[0], nullptr);
    EXPECT_EQ(errno_of([&] { std::rethrow_exception(thrown[0]); }), ENOSPC);
    EXPECT_EQ(text_of(thrown[0]), "exception: writing 'w': write: No space left on device (errno 28)");
    for (const std::size_t rank : {1, 2}) {
      expect_thrown<PeerLost>(thrown[rank], {.kind = Kind::failed, .rank = 0, .error_number = ENOSPC});
      expect_message("ddp", "on the others", text_of(thrown[rank]));
    }
  }
}

// `if (rank == 0) save_weights(...)`, as it is written for PyTorch.
TEST(Faults, ACollectiveCallThatOneRankAloneMakesIsNamed) {
  const auto expect_named = [](const std::string& call, const RankBody& body) {
    const auto thrown = thrown_on(2, [&](const std::shared_ptr<ProcessGroup>& group) {
      if (group->rank() == 0) body(group);
    });
    expect_message("ddp", call, text_of(thrown[0]));
  };
  expect_named("save_weights", [](const std::shared_ptr<ProcessGroup>& group) {
    on_rank0(
        "save_weights", [] { return std::string("written"); }, *group);
  });
  expect_named("Metrics::result", [](const std::shared_ptr<ProcessGroup>& group) {
    Metrics metrics(*group);
    metrics.add("loss", 1.0, 1);
    metrics.result();
  });
}

TEST(Faults, ASaveThatFailsOnRankZeroFailsEverywhereAndTheJobGoesOn) {
  run_ranks(3, [](const std::shared_ptr<ProcessGroup>& group) {
    nn::Linear model(5, 2);
    expect_message("ddp", group->rank() == 0 ? "on rank 0" : "on the others",
                   error_of<Error>([&] { save_weights("/no/such/folder/weights", model, *group); }));
    DistributedDataParallel ddp(model, group);
    EXPECT_EQ(ddp.backward(mean(ddp(Tensor::ones({2, 5})))), 6);
  });
}

}  // namespace
}  // namespace lockstep::testing::faults_test
