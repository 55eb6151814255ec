// SPDX-License-Identifier: Apache-2.0
// Snapshots of steps with several backwards, of both engines: with the Side of ddp_contract.h, which for them also has
//
//   using Snapshots;
//   static auto optimizer(ddp);  // one with a state, whose writes are counted
#pragma once

#include <barrier>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>

#include "lockstep/snapshot/snapshots.h"
#include "tests/multirank/ddp_contract.h"
#include "tests/support/snapshots_in.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing {

template <typename Side>
class SnapshotsContract : public ::testing::Test {
 protected:
  using Group = std::shared_ptr<ProcessGroup>;
  using Ddp = typename decltype(Side::wrap(std::declval<typename Side::Net&>(), nullptr, {}))::element_type;

  // One rank of a program.
  struct Program {
    Program(const Group& the_group, const std::filesystem::path& folder, const SnapshotOptions& options)
        : group(the_group),
          ddp((Side::initialize(net), Side::wrap(net, group, {}))),
          optimizer(Side::optimizer(*ddp)),
          snapshots(folder, *ddp, options) {
      snapshots.add("optimizer", optimizer);
      snapshots.add("read", read);
      restored = snapshots.restore();
    }

    // Of the next two of this rank's rows.
    void backward() {
      const std::int64_t begin = (2 * read++ + 3 * group->rank()) % (kRows - 2);
      ddp->backward(Side::mean_of((*ddp)(Side::rows(begin, begin + 2))));
    }
    void update() {
      optimizer.step();
      Side::clear(net);
    }
    // Steps of two backwards, until ddp counts `stop`. `dies`: between the backwards of the one that begins with 4.
    void train(std::int64_t stop, bool dies) {
      while (ddp->steps() < stop) {
        backward();
        if (dies && ddp->steps() == 5) throw std::runtime_error("this rank dies");
        backward();
        update();
        snapshots.step();
      }
    }

    Group group;
    typename Side::Net net;
    std::unique_ptr<Ddp> ddp;
    decltype(Side::optimizer(std::declval<Ddp&>())) optimizer;
    std::int64_t read = 0;  // the place in the data
    typename Side::Snapshots snapshots;
    std::optional<RestoredSnapshot> restored;
  };
};

TYPED_TEST_SUITE_P(SnapshotsContract);

TYPED_TEST_P(SnapshotsContract, OneBetweenTwoBackwardsOfAStepIsRefusedByTheSecondAndNotRescued) {
  for (const std::int64_t every : {0, 1}) {
    for (const int ranks : {1, 2, 3}) {
      const TemporaryFolder folder;
      std::barrier everyone(ranks);
      const std::string text = error_of<InvalidArgument>([&] {
        TypeParam::run(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
          typename TestFixture::Program it(group, folder / "run", {.every = every});
          it.backward();
          it.update();
          it.snapshots.step();
          it.snapshots.wait();
          it.backward();
          it.snapshots.step();
          it.snapshots.wait();
          everyone.arrive_and_wait();  // a rank that is still in the step before saves that one
          it.backward();
        });
      });
      expect_text(text, {"Snapshots: step() or save() came between two backwards of one step, after step 2",
                         "call it after the last backward of a step and the optimizer",
                         "If an epoch ends with too few micro-batches, take the step, or drop them"});
      EXPECT_EQ(text.find("remove step 2 from '") != std::string::npos, every == 1) << text;
      EXPECT_EQ(snapshots_in(folder / "run").size(), every == 1 ? 2u : 0u) << ranks << " ranks";
    }
  }
}

TYPED_TEST_P(SnapshotsContract, ASaveBetweenMicroBatchesIsRefusedByTheNextAndAStepThereIsNone) {
  for (const int ranks : {1, 2}) {
    const TemporaryFolder folder;
    std::barrier everyone(ranks);
    TypeParam::run(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
      typename TestFixture::Program it(group, folder / "run", {.every = 1});
      const auto local_backward = [&] {
        const auto local = it.ddp->no_sync();
        it.backward();
      };
      local_backward();
      it.snapshots.step();
      it.backward();
      it.update();
      it.snapshots.step();
      EXPECT_EQ(it.ddp->steps(), 1);
      local_backward();
      it.snapshots.save();
      everyone.arrive_and_wait();
      expect_text(
          outcome_of([&] { it.backward(); }),
          {"InvalidArgument: Snapshots: step() or save() came between two backwards of one step, after step 1"});
    });
  }
}

TYPED_TEST_P(SnapshotsContract, OneBehindAnUpdateOrBesideClearedGradientsIsNone) {
  for (const int ranks : {1, 2}) {
    const TemporaryFolder folder;
    TypeParam::run(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
      typename TestFixture::Program it(group, folder / "run", {.every = 1});
      it.train(4, false);
      // Steps that a GradScaler leaves out: without an update.
      it.backward();
      TypeParam::clear(it.net);
      it.snapshots.step();
      it.backward();
      it.snapshots.step();
      TypeParam::clear(it.net);
      it.backward();
      it.optimizer.step();
      it.snapshots.step();
      it.backward();  // on top of a gradient that an update has used
      EXPECT_EQ(it.ddp->steps(), 8);
    });
  }
}

// Nothing is written yet when the second backward waits for a rank that has died: the last step is whole.
TYPED_TEST_P(SnapshotsContract, ADeathBetweenTwoBackwardsOfAStepCostsNoFinishedStep) {
  const TemporaryFolder whole, parts;
  // After training: gradients, of the bits of all weights.
  const auto run = [](const std::filesystem::path& folder, std::int64_t& from, bool dies) {
    Values result;
    TypeParam::run(2, [&](const std::shared_ptr<ProcessGroup>& group) {
      const bool is_dying = dies && group->rank() == 1;
      typename TestFixture::Program it(group, folder, {.rescue = !is_dying});
      EXPECT_EQ(it.read, it.ddp->steps());
      it.train(10, is_dying);
      it.backward();
      if (group->rank() > 0) return;
      from = it.restored ? it.restored->step : 0;
      result = TypeParam::gradients(it.net);
    });
    return result;
  };
  std::int64_t from = -1;
  const Values wanted = run(whole / "run", from, false);
  EXPECT_EQ(from, 0);
  EXPECT_ANY_THROW(run(parts / "run", from, true));
  EXPECT_EQ(run(parts / "run", from, false), wanted);
  EXPECT_EQ(from, 4);
}

REGISTER_TYPED_TEST_SUITE_P(SnapshotsContract, OneBetweenTwoBackwardsOfAStepIsRefusedByTheSecondAndNotRescued,
                            ASaveBetweenMicroBatchesIsRefusedByTheNextAndAStepThereIsNone,
                            OneBehindAnUpdateOrBesideClearedGradientsIsNone,
                            ADeathBetweenTwoBackwardsOfAStepCostsNoFinishedStep);

}  // namespace lockstep::testing
