// SPDX-License-Identifier: Apache-2.0
// Snapshots of both engines: who resumes from what, and what is none between two backwards of a step. With the Side of
// ddp_contract.h, which for them also has
//
//   using Snapshots;
//   struct Vectors { Vectors(names, tied); std::vector<float> first(); };  // y = x * each * factor, of 4 elements each
//   static auto wrap(Vectors&, group, options);
//   static auto optimizer(ddp, shard);  // a pointer to an AdamW, which has shards where ddp has them
//   static Values weights(net);
#pragma once

#include <barrier>
#include <filesystem>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/data/sampler.h"
#include "lockstep/snapshot/snapshots.h"
#include "tests/multirank/ddp_contract.h"
#include "tests/support/snapshots_in.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing {

template <typename Side>
class SnapshotsContract : public ::testing::Test {
 protected:
  using Group = std::shared_ptr<ProcessGroup>;
  using Snapshots = typename Side::Snapshots;
  using Names = std::vector<std::string>;
  using Vector = std::vector<float>;

  // One rank of a program. `more` adds to its snapshots.
  struct Program {
    Program(const Group& the_group, const std::filesystem::path& folder, const SnapshotOptions& options,
            const std::function<void(Snapshots&)>& more = nullptr)
        : group(the_group),
          ddp((Side::initialize(net), Side::wrap(net, group, {}))),
          optimizer(Side::optimizer(*ddp, Shard::none)),
          snapshots(folder, *ddp, options) {
      snapshots.add("optimizer", *optimizer);
      snapshots.add("read", read);
      if (more) more(snapshots);
      restored = snapshots.restore();
    }

    // Of the next two of this rank's rows.
    void backward() {
      const std::int64_t begin = (2 * read++ + 3 * group->rank()) % (kRows - 2);
      ddp->backward(Side::mean_of((*ddp)(Side::rows(begin, begin + 2))));
    }
    void local_backward() {
      const auto local = ddp->no_sync();
      backward();
    }
    void update() {
      optimizer->step();
      Side::clear(net);
    }

    Group group;
    typename Side::Net net;
    decltype(Side::wrap(std::declval<typename Side::Net&>(), nullptr, {})) ddp;
    decltype(Side::optimizer(*ddp, Shard::none)) optimizer;
    std::int64_t read = 0;  // the place in the data
    Snapshots snapshots;
    std::optional<RestoredSnapshot> restored;
  };

  // Resumes in `folder`, trains in fixed micro-batches, and saves when `stop` steps are done. Returns the weights.
  static Values train(int ranks, const std::filesystem::path& folder, std::int64_t stop, Shard shard) {
    Values weights;
    Side::run(ranks, [&](const Group& group) {
      typename Side::Net net;
      Side::initialize(net);
      const auto ddp =
          Side::wrap(net, group, {.reproducible = {.micro_batches = 6, .global_batch = 12}, .shard = shard});
      const auto optimizer = Side::optimizer(*ddp, shard);
      Snapshots snapshots(folder, *ddp);
      snapshots.add("optimizer", *optimizer);
      snapshots.restore();
      const data::MicroBatchRange own = data::micro_batches_of(6, group->rank(), group->size());
      while (ddp->steps() < stop) {
        ddp->backward(2 * (own.end - own.begin), [&](std::int64_t begin, std::int64_t end) {
          return Side::mean_of((*ddp)(Side::rows(2 * own.begin + begin, 2 * own.begin + end)));
        });
        optimizer->step();
        Side::clear(net);
        snapshots.step();
      }
      snapshots.save();
      if (group->rank() == 0) weights = Side::weights(net);
    });
    return weights;
  }

  // Resumes with vectors of these names, all of them one tensor with `tied`, takes a step with gradients times `factor`
  // and saves. Returns the first vector as it was restored.
  static Vector go_on(const std::filesystem::path& folder, const Names& names, bool tied, float factor = 1,
                      int ranks = 1, Shard shard = Shard::none, const RestoreOptions& restore = {}) {
    Vector first;
    Side::run(ranks, [&](const Group& group) {
      typename Side::Vectors net(names, tied);
      net.factor = factor;
      const auto ddp = Side::wrap(net, group, {.shard = shard});
      const auto optimizer = Side::optimizer(*ddp, shard);
      Snapshots snapshots(folder, *ddp, {.restore = restore});
      snapshots.add("optimizer", *optimizer);
      snapshots.restore();
      if (group->rank() == 0) first = net.first();
      ddp->backward(Side::mean_of((*ddp)(Side::rows(0, 1))));
      optimizer->step();
      snapshots.step();
      snapshots.save();
    });
    return first;
  }
  // In the newest snapshot.
  static Vector saved(const std::filesystem::path& folder, const std::string& item, const std::string& name) {
    const checkpoint::SafetensorsFile file(folder / snapshots_in(folder).back() / (item + ".safetensors"));
    Vector values(4);
    file.read(file.find(name), std::as_writable_bytes(std::span(values)));
    return values;
  }
};

TYPED_TEST_SUITE_P(SnapshotsContract);

TYPED_TEST_P(SnapshotsContract, AnyNumberOfRanksResumesFromThoseOfAnyWithShardsOrWithout) {
  const TemporaryFolder folder;
  const Values wanted = TestFixture::train(1, folder / "undisturbed", 6, Shard::none);
  for (const int writers : {1, 2, 3}) {
    for (const Shard saved : {Shard::none, Shard::optimizer}) {
      const std::filesystem::path parts =
          folder / (std::to_string(writers) + (saved == Shard::none ? "" : " in shards"));
      EXPECT_NE(TestFixture::train(writers, parts, 3, saved), wanted);
      for (const int readers : {1, 2, 3}) {
        for (const Shard resumed : {Shard::none, Shard::optimizer}) {
          const TemporaryFolder copy;
          std::filesystem::copy(parts, copy / "run", std::filesystem::copy_options::recursive);
          EXPECT_EQ(TestFixture::train(readers, copy / "run", 6, resumed), wanted)
              << parts << " read by " << readers << (resumed == Shard::none ? "" : " in shards");
        }
      }
    }
  }
}

TYPED_TEST_P(SnapshotsContract, TiedTensorsAreSavedUnderEachNameAndRestoredFromAny) {
  using List = std::vector<std::string>;
  // Of one of the names, or of both in the other order.
  for (const List& names : {List{"wte"}, {"head"}, {"head", "wte"}}) {
    const TemporaryFolder folder;
    const auto saved = [&](const char* item, const std::string& name) {
      return TestFixture::saved(folder / "run", item, name);
    };
    TestFixture::go_on(folder / "run", names, names.size() == 2);
    auto values = saved("model", names[0]);
    auto moment = saved("optimizer", "state." + names[0] + ".exp_avg");
    for (const auto& [ranks, shard] : {std::pair(1, Shard::none), {2, Shard::optimizer}, {3, Shard::none}}) {
      EXPECT_EQ(TestFixture::go_on(folder / "run", {"wte", "head"}, true, 0, ranks, shard), values) << ranks;
      values = saved("model", "head");
      EXPECT_EQ(saved("model", "wte"), values);
      if (shard != Shard::none) continue;  // in a file of each rank's
      const auto decayed = saved("optimizer", "state.wte.exp_avg");
      for (std::size_t i = 0; i < moment.size(); ++i) {
        EXPECT_NE(moment[i], 0);
        EXPECT_NEAR(decayed[i] / moment[i], ranks == 1 ? 0.9 : 0.9 * 0.9, 1e-5);
      }
      moment = decayed;
    }
  }
}

TYPED_TEST_P(SnapshotsContract, TensorsThatWereNotEqualAreNotTied) {
  const TemporaryFolder folder;
  TestFixture::go_on(folder / "run", {"wte", "head"}, false);
  EXPECT_NE(TestFixture::saved(folder / "run", "model", "wte"), TestFixture::saved(folder / "run", "model", "head"));
  for (const int ranks : {1, 2}) {
    const RestoreOptions any{.allow_missing = true, .allow_unexpected = true};
    expect_text(error_of([&] {
                  TestFixture::go_on(folder / "run", {"wte", "head"}, true, 1, ranks, Shard::none, any);
                }),
                {"model: 'wte' and 'head' are tied in the program, and not equal"});
  }
  TestFixture::go_on(folder / "run", {"wte", "head"}, false);
}

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
      it.local_backward();
      it.snapshots.step();
      it.backward();
      it.update();
      it.snapshots.step();
      EXPECT_EQ(it.ddp->steps(), 1);
      it.local_backward();
      it.snapshots.save();
      everyone.arrive_and_wait();
      expect_text(error_of([&] { it.backward(); }),
                  {"Snapshots: step() or save() came between two backwards of one step, after step 1"});
    });
  }
}

TYPED_TEST_P(SnapshotsContract, OneBehindAnUpdateOrBesideClearedGradientsIsNone) {
  for (const int ranks : {1, 2}) {
    const TemporaryFolder folder;
    TypeParam::run(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
      typename TestFixture::Program it(group, folder / "run", {.every = 1});
      for (int twice = 0; twice < 2; ++twice) {
        it.backward();
        it.backward();
        it.update();
        it.snapshots.step();
      }
      // Steps that a GradScaler leaves out: without an update.
      it.backward();
      TypeParam::clear(it.net);
      it.snapshots.step();
      it.backward();
      it.snapshots.step();
      TypeParam::clear(it.net);
      it.backward();
      it.optimizer->step();
      it.snapshots.step();
      it.backward();  // on top of a gradient that an update has used
      EXPECT_EQ(it.ddp->steps(), 8);
    });
  }
}

// Two networks, as of a GAN: a second one takes two steps of its own for one of the first's. A state between their
// updates is none, and costs the steps since the last save.
TYPED_TEST_P(SnapshotsContract, ADeathWithinAStepCostsNoFinishedOne) {
  enum class Kind { two_backwards, micro_batches, two_networks };
  struct Result {
    Values weights;
    std::int64_t from = 0;
  };
  for (const Kind kind : {Kind::two_backwards, Kind::micro_batches, Kind::two_networks}) {
    SCOPED_TRACE(static_cast<int>(kind));
    const TemporaryFolder whole, parts;
    // Nothing is written yet when the others wait for rank 1: their last step is whole.
    const auto run = [&](const std::filesystem::path& folder, bool dies) {
      Result result;
      TypeParam::run(2, [&](const std::shared_ptr<ProcessGroup>& group) {
        const bool is_dying = dies && group->rank() == 1;
        typename TypeParam::Net second;
        TypeParam::initialize(second);
        const auto critic = TypeParam::wrap(second, group, {});
        const auto of_critic = TypeParam::optimizer(*critic, Shard::none);
        const SnapshotOptions options{.every = kind == Kind::two_networks ? 4 : 0, .rescue = !is_dying};
        typename TestFixture::Program it(group, folder, options, [&](auto& snapshots) {
          if (kind != Kind::two_networks) return;
          snapshots.add("critic", *critic);
          snapshots.add("critic_optimizer", *of_critic);
        });
        EXPECT_EQ(it.read, (kind == Kind::micro_batches ? 2 : 1) * it.ddp->steps());
        while (it.read < 10) {
          for (int twice = 0; kind == Kind::two_networks && twice < 2; ++twice) {
            critic->backward(TypeParam::mean_of((*critic)(TypeParam::rows(it.read, it.read + 2))));
            of_critic->step();
            TypeParam::clear(second);
          }
          if (kind == Kind::two_backwards) it.backward();
          if (kind == Kind::micro_batches) it.local_backward();
          if (dies && it.read >= 5) {
            group->barrier().wait();  // all have finished the step before
            if (is_dying) throw std::runtime_error("this rank dies");
          }
          it.backward();
          it.update();
          it.snapshots.step();
          it.snapshots.wait();
        }
        EXPECT_EQ(critic->steps(), kind == Kind::two_networks ? 2 * it.ddp->steps() : 0);
        if (group->rank() > 0) return;
        if (it.restored) result.from = it.restored->step;
        result.weights = TypeParam::weights(it.net);
        for (const auto& [name, values] : TypeParam::weights(second)) result.weights["critic." + name] = values;
      });
      return result;
    };
    const Result wanted = run(whole / "run", false);
    EXPECT_EQ(wanted.from, 0);
    EXPECT_ANY_THROW(run(parts / "run", true));
    const Result last = run(parts / "run", false);
    EXPECT_EQ(last.from, kind == Kind::micro_batches ? 2 : 4);
    EXPECT_EQ(last.weights, wanted.weights);
  }
}

REGISTER_TYPED_TEST_SUITE_P(SnapshotsContract, AnyNumberOfRanksResumesFromThoseOfAnyWithShardsOrWithout,
                            TiedTensorsAreSavedUnderEachNameAndRestoredFromAny, TensorsThatWereNotEqualAreNotTied,
                            OneBetweenTwoBackwardsOfAStepIsRefusedByTheSecondAndNotRescued,
                            ASaveBetweenMicroBatchesIsRefusedByTheNextAndAStepThereIsNone,
                            OneBehindAnUpdateOrBesideClearedGradientsIsNone, ADeathWithinAStepCostsNoFinishedOne);

}  // namespace lockstep::testing
