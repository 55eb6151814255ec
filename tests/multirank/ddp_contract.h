// SPDX-License-Identifier: Apache-2.0
// The contract of DistributedDataParallel, as tests over any of them: lockstep's own, and lockstep::libtorch's. A Side
// says what differs, and that is tensors.
//
//   struct Side {
//     using Net;  // 4 inputs, 3 outputs; parameters a, b, and side, which use_side leaves out
//     using Options, Tensor;
//     static void run(int ranks, body);  // body(group) on ranks that are threads
//     static void initialize(Net&);      // always the same
//     static auto wrap(Net&, group, options);  // its DistributedDataParallel
//     static Tensor rows(begin, end);    // of kRows, which are always the same
//     static Tensor mean_of(outputs), sum_of(outputs);        // of their squares
//     static void backward(Tensor loss);          // without a DistributedDataParallel
//     static double value(Tensor);
//     static Values gradients(Net&);              // but those that are 0 or are not there
//     static void clear(Net&);                    // its gradients
//     static void write(Net&);                    // to a.bias
//     static void write_uncounted(Net&);          // to a.bias, by a pointer
//     static Tensor misshapen();                  // rows that forward throws at
//     static bool has_gradient_of_side(Net&);     // also if that is 0
//     using NoGrad;                               // while one lives nothing is recorded
//     // Where the engines differ on purpose: docs/adr/0079.
//     static constexpr std::size_t kBucketsMore;  // than parameters, with a bucket for each
//     static constexpr bool kSendsAlone;          // a world of one goes through the Reducer
//     static constexpr bool kHearsTheLoss;        // a backward of the loss tells ddp the loss
//     static constexpr bool kUnusedIsZero;        // the gradient of what no rank used; else there is none
//     static constexpr bool kEvaluatesInStep;     // an exception of an evaluation is one of the step around it
//   };
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/global_batch.h"
#include "lockstep/ddp/loss.h"
#include "lockstep/progress/progress.h"
#include "lockstep/train/distributed_data_parallel.h"
#include "runtime/comm/coordinated_stop.h"
#include "runtime/comm/group_internals.h"
#include "tests/multirank/values.h"
#include "tests/support/error_of.h"

namespace lockstep::testing {

inline constexpr std::int64_t kRows = 14;

// What every DdpOptions has: of one type, with one default.
template <typename Options>
constexpr bool kHasTheOptions = requires(Options o, DdpOptions ours) {
  requires std::is_same_v<decltype(o.buckets), decltype(ours.buckets)>;
  requires std::is_same_v<decltype(o.loss), decltype(ours.loss)>;
  requires std::is_same_v<decltype(o.unused), decltype(ours.unused)>;
  requires std::is_same_v<decltype(o.overlap), decltype(ours.overlap)>;
  requires std::is_same_v<decltype(o.compare_every), decltype(ours.compare_every)>;
  requires std::is_same_v<decltype(o.comm_hook), decltype(ours.comm_hook)>;
  requires std::is_same_v<decltype(o.not_finite), decltype(ours.not_finite)>;
  requires std::is_same_v<decltype(o.reproducible), decltype(ours.reproducible)>;
};

struct RowsOf {
  std::int64_t begin, end;
};
// An uneven part of the global batch; of three ranks the last has none.
inline RowsOf part_of(int rank, int ranks) {
  if (ranks == 1) return {0, kRows};
  constexpr std::array<std::int64_t, 4> kCuts{0, 9, kRows, kRows};
  return {kCuts[static_cast<std::size_t>(rank)], kCuts[static_cast<std::size_t>(rank) + 1]};
}

template <typename Side>
class DdpContract : public ::testing::Test {
 protected:
  using Net = typename Side::Net;
  using Options = typename Side::Options;
  using Group = std::shared_ptr<ProcessGroup>;

  static typename Side::Tensor loss_of(const typename Side::Tensor& outputs, Loss kind) {
    return kind == Loss::mean ? Side::mean_of(outputs) : Side::sum_of(outputs);
  }

  struct Alone {
    Values gradients;
    double loss;
  };
  static Alone alone(Loss kind, RowsOf part = {0, kRows}, bool use_side = true) {
    Net net;
    net.use_side = use_side;
    Side::initialize(net);
    const auto loss = loss_of(net.forward(Side::rows(part.begin, part.end)), kind);
    Side::backward(loss);
    return {Side::gradients(net), Side::value(loss)};
  }

  // `share` of the gradients of one process, in addition to those of `sums`.
  static void add(Values& sums, const Values& gradients, float share = 1) {
    for (const auto& [name, values] : gradients) {
      auto& sum = sums[name];
      sum.resize(values.size());
      for (std::size_t i = 0; i < values.size(); ++i) sum[i] += share * values[i];
    }
  }
  // A backward of rows [begin, end).
  template <typename Ddp>
  static void step(Ddp& ddp, RowsOf rows, Loss kind = Loss::mean) {
    ddp.backward(loss_of(ddp(Side::rows(rows.begin, rows.end)), kind));
  }
  template <typename Ddp>
  static RowsOf part_of_rank(Ddp& ddp) {
    return part_of(ddp.group()->rank(), ddp.group()->size());
  }

  // A step of the global batch in parts. On every rank the same that one process has.
  template <typename Ddp>
  static void expect_step(Ddp& ddp, Loss kind, const Alone& wanted) {
    const std::int64_t before = ddp.steps();
    Side::clear(ddp.module());
    step(ddp, part_of_rank(ddp), kind);
    expect_near(Side::gradients(ddp.module()), wanted.gradients);
    EXPECT_EQ(ddp.steps(), before + 1);
    EXPECT_EQ(ddp.last_weight(), kRows);
    EXPECT_EQ(ddp.last_batch().step, before);
    EXPECT_EQ(ddp.last_batch().weight, kRows);
    ASSERT_TRUE(ddp.last_loss().has_value());
    EXPECT_NEAR(*ddp.last_loss(), wanted.loss, 1e-6 * std::abs(wanted.loss));
  }

  // body(net, ddp) on each of `ranks`.
  template <typename Body>
  static void on(int ranks, const Options& options, Body body) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    Side::run(ranks, [&](const Group& group) {
      Net net;
      Side::initialize(net);
      auto ddp = Side::wrap(net, group, options);
      body(net, *ddp);
    });
  }
  template <typename Body>
  static void on_ranks(const Options& options, Body body) {
    for (const int ranks : {1, 2, 3}) on(ranks, options, body);
  }
};

TYPED_TEST_SUITE_P(DdpContract);

TYPED_TEST_P(DdpContract, GivesGradientsAndLossOfOneProcess) {
  static_assert(kHasTheOptions<typename TypeParam::Options>);
  static_assert(
      TellsSteps<
          std::remove_reference_t<decltype(*TypeParam::wrap(std::declval<typename TypeParam::Net&>(), nullptr, {}))>>);
  for (const Loss kind : {Loss::mean, Loss::sum}) {
    const auto wanted = TestFixture::alone(kind);
    TestFixture::on_ranks({.loss = kind}, [&](auto&, auto& ddp) {
      EXPECT_EQ(ddp.last_loss(), std::nullopt);
      EXPECT_EQ(ddp.last_batch().step, -1);
      for (int step = 0; step < 3; ++step) TestFixture::expect_step(ddp, kind, wanted);
    });
  }
}

TYPED_TEST_P(DdpContract, MicroBatchesWithoutSyncAreOneStep) {
  for (const Loss kind : {Loss::mean, Loss::sum}) {
    const auto wanted = TestFixture::alone(kind);
    TestFixture::on_ranks({.loss = kind, .overlap = kind == Loss::sum}, [&](auto& net, auto& ddp) {
      const RowsOf all = TestFixture::part_of_rank(ddp);
      const std::int64_t middle = (all.begin + all.end + 1) / 2;
      for (int step = 0; step < 2; ++step) {
        TypeParam::clear(net);
        const std::array<RowsOf, 2> parts{RowsOf{all.begin, middle}, RowsOf{middle, all.end}};
        for (std::size_t i = 0; i < parts.size(); ++i) {
          const auto local = ddp.no_sync(i == 0);
          const auto nested = ddp.no_sync(i == 0);
          TestFixture::step(ddp, parts[i], kind);
          EXPECT_EQ(ddp.steps(), step + static_cast<int>(i));
        }
        expect_near(TypeParam::gradients(net), wanted.gradients);
        EXPECT_EQ(ddp.steps(), step + 1);
        EXPECT_EQ(ddp.last_weight(), kRows);
        EXPECT_NEAR(ddp.last_loss().value(), wanted.loss, 1e-6 * std::abs(wanted.loss));
      }
    });
  }
}

// As of several losses of a step, of which one leaves a layer out, and of a step in which few or none have rows.
TYPED_TEST_P(DdpContract, GradientsThatAreNotClearedAddUp) {
  for (const Loss kind : {Loss::mean, Loss::sum}) {
    const auto whole = TestFixture::alone(kind),
               without_side = TestFixture::alone(kind, {0, kRows}, /*use_side=*/false);
    const auto of_last = TestFixture::alone(kind, {0, 5});
    TestFixture::on_ranks({.loss = kind}, [&](auto& net, auto& ddp) {
      Values wanted;
      for (const bool use_side : {true, false, true}) {
        net.use_side = use_side;
        TestFixture::step(ddp, TestFixture::part_of_rank(ddp), kind);
        TestFixture::add(wanted, (use_side ? whole : without_side).gradients);
        expect_near(TypeParam::gradients(net), wanted);
      }
      ddp.step_without_data();
      expect_near(TypeParam::gradients(net), wanted);
      TestFixture::step(ddp, {0, 0}, kind);
      expect_near(TypeParam::gradients(net), wanted);
      EXPECT_EQ(ddp.last_batch().weight, 0);
      if (ddp.group()->rank() == ddp.group()->size() - 1) {
        TestFixture::step(ddp, {0, 5}, kind);
      } else {
        ddp.step_without_data();
      }
      TestFixture::add(wanted, of_last.gradients);
      expect_near(TypeParam::gradients(net), wanted);
      EXPECT_EQ(ddp.steps(), 6);
    });
  }
}

TYPED_TEST_P(DdpContract, AGivenWeightCountsInPlaceOfRows) {
  // Rank r's mean counts r + 1, whatever its rows are.
  const auto weight_of = [](int rank, int ranks) {
    const RowsOf part = part_of(rank, ranks);
    return part.begin == part.end ? 0 : rank + 1;
  };
  TestFixture::on_ranks({}, [&](auto& net, auto& ddp) {
    const int rank = ddp.group()->rank(), ranks = ddp.group()->size();
    Values wanted;
    double loss_wanted = 0;
    int total = 0;
    for (int r = 0; r < ranks; ++r) total += weight_of(r, ranks);
    for (int r = 0; r < ranks; ++r) {
      if (weight_of(r, ranks) == 0) continue;
      const float share = static_cast<float>(weight_of(r, ranks)) / static_cast<float>(total);
      const auto alone = TestFixture::alone(Loss::mean, part_of(r, ranks));
      loss_wanted += share * alone.loss;
      TestFixture::add(wanted, alone.gradients, share);
    }
    const RowsOf part = TestFixture::part_of_rank(ddp);
    for (const bool is_ahead : {false, true}) {
      TypeParam::clear(net);
      if (is_ahead) {
        ddp.set_weight(weight_of(rank, ranks));
        ddp(TypeParam::rows(0, 7));  // goes nowhere
      }
      const auto loss = TestFixture::loss_of(ddp(TypeParam::rows(part.begin, part.end)), Loss::mean);
      if (!is_ahead) ddp.set_weight(weight_of(rank, ranks));
      ddp.backward(loss);
      expect_near(TypeParam::gradients(net), wanted);
      EXPECT_EQ(ddp.last_weight(), total);
      EXPECT_NEAR(ddp.last_loss().value(), loss_wanted, 1e-6 * std::abs(loss_wanted));
    }
    // The rows of another forward replace one that was set between two.
    ddp(TypeParam::rows(0, 7));
    ddp.set_weight(70);
    TestFixture::step(ddp, {0, 3});
    EXPECT_EQ(ddp.last_weight(), 3 * ranks);
    // Of one step: the next forward counts rows, and of no forward there are none.
    TestFixture::step(ddp, {0, 3});
    EXPECT_EQ(ddp.last_weight(), 3 * ranks);
    ddp.set_weight(5);
    ddp.step_without_data();
    EXPECT_EQ(ddp.last_weight(), 0);
    expect_text(outcome_of([&] { ddp.set_weight(-1); }),
                {"InvalidArgument: DistributedDataParallel: set_weight got weight -1"});
  });
}

TYPED_TEST_P(DdpContract, MicroBatchesWithoutSyncOnTopOfAGradientAreRefused) {
  TestFixture::on_ranks({}, [&](auto& net, auto& ddp) {
    TestFixture::step(ddp, {0, 3});
    {
      const auto local = ddp.no_sync();
      for (const std::string& refusal :
           {outcome_of([&] { ddp(TypeParam::rows(0, 3)); }), outcome_of([&] { ddp.step_without_data(); })}) {
        expect_text(refusal, {"InvalidArgument: DistributedDataParallel: '",
                              "' still has the gradient of an earlier step at the first micro-batch of no_sync(); call "
                              "zero_grad() after each step"});
      }
      TypeParam::clear(net);
      TestFixture::step(ddp, {0, 3});
    }
    TestFixture::step(ddp, {0, 3});
    EXPECT_EQ(ddp.steps(), 2);
  });
}

// Once, also where one step of a world of one sends nothing and the next goes through the Reducer.
TYPED_TEST_P(DdpContract, AStepIsCountedOnceWhicheverWayItTakes) {
  TestFixture::on_ranks({}, [&](auto& net, auto& ddp) {
    const auto micro_batch = [&](bool is_last) {
      const auto local = ddp.no_sync(!is_last);
      TestFixture::step(ddp, {0, 3});
    };
    micro_batch(true);
    EXPECT_EQ(ddp.last_step().step, TypeParam::kSendsAlone || ddp.group()->size() > 1 ? 0 : -1);
    TypeParam::clear(net);
    ddp.step_without_data();
    for (int step = 2; step < 4; ++step) {
      TypeParam::clear(net);
      micro_batch(false);
      micro_batch(true);
      EXPECT_EQ(ddp.last_step().step, step);
      EXPECT_EQ(ddp.last_batch().step, step);
      EXPECT_EQ(ddp.group()->internals().coordinated_stop()->steps_done(), step + 1);
    }
    EXPECT_EQ(ddp.steps(), 4);
  });
}

TYPED_TEST_P(DdpContract, ABackwardOfTheLossAloneIsAsTheEngineHearsOfIt) {
  TestFixture::on_ranks({}, [&](auto&, auto& ddp) {
    const auto loss = TestFixture::loss_of(ddp(TypeParam::rows(0, 3)), Loss::mean);
    TypeParam::backward(loss);
    EXPECT_EQ(ddp.last_weight(), 3 * ddp.group()->size());
    EXPECT_EQ(ddp.last_loss().has_value(), TypeParam::kHearsTheLoss);
    EXPECT_EQ(ddp.steps(), 1);
  });
}

TYPED_TEST_P(DdpContract, WhatNoRankUsedHasNoGradientOrZero) {
  const auto wanted = TestFixture::alone(Loss::mean, {0, kRows}, /*use_side=*/false);
  TestFixture::on_ranks({}, [&](auto& net, auto& ddp) {
    net.use_side = false;
    TestFixture::expect_step(ddp, Loss::mean, wanted);
    EXPECT_EQ(TypeParam::has_gradient_of_side(net), TypeParam::kUnusedIsZero);
  });
}

TYPED_TEST_P(DdpContract, AParameterThatOneRankUsesHasItsMeanEverywhere) {
  Values wanted;
  for (const int rank : {0, 1}) {
    const RowsOf part = part_of(rank, 2);
    const float share = static_cast<float>(part.end - part.begin) / kRows;
    TestFixture::add(wanted, TestFixture::alone(Loss::mean, part, /*use_side=*/rank == 0).gradients, share);
  }
  TestFixture::on(2, {.buckets = {.cap_bytes = 0, .first_cap_bytes = 0}}, [&](auto& net, auto& ddp) {
    net.use_side = ddp.group()->rank() == 0;
    for (int step = 0; step < 3; ++step) {
      TypeParam::clear(net);
      TestFixture::step(ddp, TestFixture::part_of_rank(ddp));
      expect_near(TypeParam::gradients(net), wanted);
    }
  });
}

// By one rank alone, which would wait for the others.
TYPED_TEST_P(DdpContract, AnEvaluationSendsNothing) {
  TestFixture::on(2, {}, [&](auto&, auto& ddp) {
    TestFixture::step(ddp, {0, 3});
    if (ddp.group()->rank() == 0) {
      const typename TypeParam::NoGrad no_grad;
      ddp.eval();
      EXPECT_EQ(TypeParam::value(TypeParam::mean_of(ddp(TypeParam::rows(0, 7)))),
                TypeParam::value(TypeParam::mean_of(ddp.module().forward(TypeParam::rows(0, 7)))));
      ddp.train();
    }
    TestFixture::step(ddp, {0, 3});
    EXPECT_EQ(ddp.last_weight(), 6);
    EXPECT_EQ(ddp.steps(), 2);
  });
}

TYPED_TEST_P(DdpContract, AnExceptionOfAForwardBetweenMicroBatchesIsOneOfTheStep) {
  for (const bool is_evaluation : {false, true}) {
    const bool is_told = !is_evaluation || TypeParam::kEvaluatesInStep;
    TestFixture::on(2, {}, [&](auto&, auto& ddp) {
      // Rank 0 may hear of it in its first micro-batch.
      const std::string told = outcome_of([&] {
        {
          const auto local = ddp.no_sync();
          TestFixture::step(ddp, {0, 3});
        }
        if (ddp.group()->rank() == 1) {
          std::optional<typename TypeParam::NoGrad> no_grad;
          if (is_evaluation) no_grad.emplace();
          EXPECT_NE(outcome_of([&] { ddp(TypeParam::misshapen()); }), "nothing");
        }
        TestFixture::step(ddp, {0, 3});
      });
      EXPECT_EQ(told.find("failed in the forward of step 0: ") != std::string::npos, is_told) << told;
      if (is_told && ddp.group()->rank() == 0) expect_text(told, {"PeerLost: ", "rank 1 ("});
      EXPECT_EQ(ddp.steps(), is_told ? 0 : 1);
    });
  }
}

TYPED_TEST_P(DdpContract, ARankWithoutDataTakesPart) {
  const auto wanted = TestFixture::alone(Loss::mean, {0, 5});
  TestFixture::on_ranks({}, [&](auto& net, auto& ddp) {
    const int rank = ddp.group()->rank(), last = ddp.group()->size() - 1;
    for (int step = 0; step < 2; ++step) {
      TypeParam::clear(net);
      if (rank == last) {
        TestFixture::step(ddp, {0, 5});
      } else {
        ddp.step_without_data();
      }
      expect_near(TypeParam::gradients(net), wanted.gradients);
      EXPECT_EQ(ddp.last_weight(), 5);
      EXPECT_NEAR(ddp.last_loss().value(), wanted.loss, 1e-6 * wanted.loss);
    }
    ddp.step_without_data();
    EXPECT_EQ(ddp.last_weight(), 0);
    EXPECT_EQ(ddp.last_loss(), std::nullopt) << "nobody had rows";
    EXPECT_EQ(ddp.steps(), 3);
  });
}

TYPED_TEST_P(DdpContract, ALossThatIsNotFiniteIsNotANumberOnEveryRank) {
  TestFixture::on_ranks({}, [&](auto&, auto& ddp) {
    const auto loss = TestFixture::loss_of(ddp(TypeParam::rows(0, 2)), Loss::mean);
    const bool is_first = ddp.group()->rank() == 0;
    ddp.backward(is_first ? loss * std::numeric_limits<float>::infinity() : loss);
    EXPECT_TRUE(std::isnan(ddp.last_loss().value()));
    EXPECT_EQ(ddp.last_weight(), 2 * ddp.group()->size());
  });
}

TYPED_TEST_P(DdpContract, ANanIsRaisedOnEveryRankUnderTheNameOfWhoseItIs) {
  for (const int ranks : {1, 2, 3}) {
    const int whose = std::min(ranks - 1, 1);
    std::vector<std::string> texts(static_cast<std::size_t>(ranks));
    TestFixture::on(ranks, {.not_finite = NotFinite::raise}, [&](auto&, auto& ddp) {
      const int rank = ddp.group()->rank();
      const auto train = [&] {
        for (int step = 0; step < 20; ++step) {
          TypeParam::clear(ddp.module());
          const auto loss = TestFixture::loss_of(ddp(TypeParam::rows(0, 2)), Loss::mean);
          ddp.backward(rank == whose && step == 3 ? loss * std::numeric_limits<float>::quiet_NaN() : loss);
        }
      };
      texts[static_cast<std::size_t>(rank)] =
          rank == whose ? error_of<NotFiniteGradient>(train) : error_of<PeerLost>(train);
    });
    const std::string text = "NaN in rank " + std::to_string(whose) + "'s gradient of '";
    for (const std::string& told : texts) expect_text(told, {text, "' in step 3"});
  }
}

TYPED_TEST_P(DdpContract, DeclaredUnusedParametersAreHeldToIt) {
  using Names = std::vector<std::string>;
  const Names side{"side.weight", "side.bias"};
  const auto wanted = TestFixture::alone(Loss::mean, {0, kRows}, /*use_side=*/false);
  TestFixture::on_ranks({.unused = side}, [&](auto& net, auto& ddp) {
    net.use_side = false;
    TestFixture::expect_step(ddp, Loss::mean, wanted);
  });
  TypeParam::run(1, [&](const std::shared_ptr<ProcessGroup>& group) {
    typename TypeParam::Net net;
    const Names misspelt{"side.wieght"};
    expect_text(outcome_of([&] { TypeParam::wrap(net, group, {.unused = misspelt}); }),
                {"InvalidArgument: DistributedDataParallel: 'side.wieght' is declared unused"});
  });
  for (const bool overlap : {true, false}) {
    for (const int ranks : {1, 2}) {
      TestFixture::on(ranks, {.unused = side, .overlap = overlap}, [&](auto&, auto& ddp) {
        expect_text(outcome_of([&] {
                      TestFixture::step(ddp, {0, 2});
                    }),
                    {"is declared unused and got a gradient in step 0"});
      });
    }
  }
}

TYPED_TEST_P(DdpContract, GivesTheSameWithAndWithoutOverlap) {
  const auto wanted = TestFixture::alone(Loss::mean);
  for (const bool overlap : {true, false}) {
    TestFixture::on_ranks({.buckets = {.cap_bytes = 0, .first_cap_bytes = 0}, .overlap = overlap},
                          [&](auto&, auto& ddp) {
                            for (int step = 0; step < 2; ++step) TestFixture::expect_step(ddp, Loss::mean, wanted);
                            if (ddp.group()->size() == 1) return;
                            EXPECT_EQ(ddp.last_step().step, 1);
                            const trace::StepRecord& record = ddp.last_step();
                            EXPECT_EQ(record.gradients_ready, 6);
                            ASSERT_EQ(record.buckets.size(), 6u + TypeParam::kBucketsMore);
                            // By order, not by time: each bucket was launched before the next gradient was there.
                            for (int i = 0; overlap && i < 6; ++i) {
                              EXPECT_EQ(record.buckets[static_cast<std::size_t>(i)].gradients_ready, i + 1);
                            }
                          });
  }
}

// In the next step, if the engine counts the write, else by the next digest. A rank without data takes part.
TYPED_TEST_P(DdpContract, ReplicasThatCameApartAreFoundWhenAskedAndBySteps) {
  for (const bool is_counted : {true, false}) {
    TestFixture::on(3, {.compare_every = is_counted ? 0 : 2}, [&](auto& net, auto& ddp) {
      const auto step = [&] {
        if (ddp.group()->rank() == 2) return ddp.step_without_data();
        TestFixture::step(ddp, {0, 3});
      };
      for (int i = 0; i < 3; ++i) step();
      ddp.check_replicas();
      if (ddp.group()->rank() == 1) is_counted ? TypeParam::write(net) : TypeParam::write_uncounted(net);
      const std::string whose = "'a.bias': rank 1 differs from the others";
      expect_text(outcome_of([&] { ddp.check_replicas(); }), {"Mismatch: ", whose});
      if (!is_counted) step();
      expect_text(outcome_of(step), {"Mismatch: ", whose, is_counted ? "before step 3" : "between step 2 and step 4"});
    });
  }
}

// Of one shape: nothing else tells their buckets apart.
TYPED_TEST_P(DdpContract, ModelsThatAreSteppedInAnotherOrderOnOneRankAreFound) {
  for (const int ranks : {2, 3}) {
    TestFixture::on(ranks, {}, [&](auto&, auto& ddp) {
      typename TypeParam::Net other;
      TypeParam::initialize(other);
      const auto second = TypeParam::wrap(other, ddp.group(), {});
      const auto step = [](auto& one) { TestFixture::step(one, {0, 3}); };
      for (int i = 0; i < 2; ++i) {
        step(ddp);
        step(*second);
      }
      step(ddp);
      expect_text(
          outcome_of([&] { step(ddp.group()->rank() == 1 ? *second : ddp); }),
          {"Mismatch: DistributedDataParallel: the ranks averaged the gradients of different models",
           ranks == 2 ? "from 1, rank 0 has 1; rank 1 has 2. Step" : "ranks 0 and 2 have 1; rank 1 has 2. Step"});
    });
  }
}

TYPED_TEST_P(DdpContract, IsUsedAsTheModuleIs) {
  TestFixture::on_ranks({}, [&](auto& net, auto& ddp) {
    EXPECT_EQ(&ddp.module(), &net);
    EXPECT_EQ(ddp.operator->(), &net);
    EXPECT_EQ(ddp.parameters().size(), net.parameters().size());
    ddp.set_steps(70);
    EXPECT_EQ(ddp.steps(), 70);
    expect_text(outcome_of([&] { ddp.set_steps(-2); }), {"InvalidArgument: DistributedDataParallel: set_steps(-2)"});
    ddp.eval();
    EXPECT_FALSE(ddp->is_training());
    ddp.train();
    EXPECT_TRUE(ddp->is_training());
    const double by_verb = TypeParam::value(TypeParam::mean_of(ddp.forward(TypeParam::rows(0, 2))));
    EXPECT_EQ(by_verb, TypeParam::value(TypeParam::mean_of(net.forward(TypeParam::rows(0, 2)))));
    ddp.backward(TypeParam::mean_of(ddp(TypeParam::rows(0, 2))));
    EXPECT_EQ(ddp.steps(), 71);
    EXPECT_EQ(ddp.last_batch().step, 0) << "of this run";
  });
}

TYPED_TEST_P(DdpContract, ABackwardWithoutAForwardOfItsIsRefused) {
  TypeParam::run(1, [&](const std::shared_ptr<ProcessGroup>& group) {
    typename TypeParam::Net net;
    auto ddp = TypeParam::wrap(net, group, {});
    const auto by_the_module = [&] {
      ddp->backward(TestFixture::loss_of(net.forward(TypeParam::rows(0, 2)), Loss::mean));
    };
    for (int step = 0; step < 2; ++step) {
      expect_text(outcome_of(by_the_module),
                  {"InvalidArgument: ", "no forward went through this object since the last backward"});
      TestFixture::step(*ddp, {0, 2});
      EXPECT_EQ(ddp->steps(), step + 1);
    }
  });
}

REGISTER_TYPED_TEST_SUITE_P(DdpContract, GivesGradientsAndLossOfOneProcess, MicroBatchesWithoutSyncAreOneStep,
                            GradientsThatAreNotClearedAddUp, AParameterThatOneRankUsesHasItsMeanEverywhere,
                            AnEvaluationSendsNothing, AGivenWeightCountsInPlaceOfRows,
                            MicroBatchesWithoutSyncOnTopOfAGradientAreRefused, AStepIsCountedOnceWhicheverWayItTakes,
                            ABackwardOfTheLossAloneIsAsTheEngineHearsOfIt, WhatNoRankUsedHasNoGradientOrZero,
                            AnExceptionOfAForwardBetweenMicroBatchesIsOneOfTheStep, ARankWithoutDataTakesPart,
                            ALossThatIsNotFiniteIsNotANumberOnEveryRank, ANanIsRaisedOnEveryRankUnderTheNameOfWhoseItIs,
                            DeclaredUnusedParametersAreHeldToIt, GivesTheSameWithAndWithoutOverlap,
                            ReplicasThatCameApartAreFoundWhenAskedAndBySteps,
                            ModelsThatAreSteppedInAnotherOrderOnOneRankAreFound, IsUsedAsTheModuleIs,
                            ABackwardWithoutAForwardOfItsIsRefused);

}  // namespace lockstep::testing
