// SPDX-License-Identifier: Apache-2.0
// What a step computes, on every backend.
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/comm/stop.h"
#include "lockstep/ddp/broadcast_parameters.h"
#include "lockstep/ddp/replica_check.h"
#include "lockstep/device/device_runtime.h"
#include "runtime/comm/group_internals.h"
#include "tests/multirank/reducer/suite.h"
#include "tests/support/error_of.h"

namespace lockstep::testing::steps_test {
namespace {

TEST_P(ReducerSuite, TakesTheMeanOverUnevenShards) {
  run([](const Group& group) {
    Reducer reducer(kSix, group, kTwoEach);
    EXPECT_EQ(reducer.total_weight(), 0);
    // Rank 1 has no data.
    const auto weight_of = [](int rank) { return rank == 1 ? 0 : 2 * rank + 3; };
    std::int64_t total = 0;
    double sum = 0;
    for (int r = 0; r < group->size(); ++r) {
      total += weight_of(r);
      sum += weight_of(r) * (r + 1);
    }
    const int mine = weight_of(group->rank());
    for (int step = 0; step < 3; ++step) {
      reducer.begin_step({.weight = mine});
      if (mine > 0) backward(group, reducer, mine * (group->rank() + 1));
      finish(group, reducer, total);
      for (int p = 0; p < 6; ++p) {
        EXPECT_FLOAT_EQ(first(group, reducer, p), static_cast<float>((p + 1) * sum / static_cast<double>(total)));
      }
      EXPECT_EQ(reducer.total_weight(), total) << "asked again";
    }
  });
}

TEST_P(ReducerSuite, TellsTheGroupWhichStepItIsIn) {
  run([](const Group& group) {
    Reducer reducer(kSix, group, kTwoEach);
    EXPECT_EQ(group->internals().step(), -1);
    for (int step = 0; step < 3; ++step) {
      reducer.begin_step();
      EXPECT_EQ(group->internals().step(), step);
      backward(group, reducer, 1);
      reducer.finish_step();
    }
  });
}

// On a device at the end of the step that has read the note: two steps later.
TEST_P(ReducerSuite, AgreesToStopAtTheEndOfOneStep) {
  run([](const Group& group) {
    Reducer reducer(kSix, group, kTwoEach);
    const int read_later = group->device().kind == DeviceKind::cpu ? 0 : 2;
    for (int step = 0; step < 8; ++step) {
      if (step == 3 && group->rank() == group->size() - 1) request_stop(*group, "enough");
      reducer.begin_step();
      backward(group, reducer, 1);
      EXPECT_EQ(should_stop(*group).has_value(), step > 3 + read_later) << "within step " << step;
      reducer.finish_step();
      EXPECT_EQ(should_stop(*group).has_value(), step >= 3 + read_later) << "behind step " << step;
    }
    EXPECT_EQ(should_stop(*group), "enough");
    EXPECT_EQ(exit_code(*group), 0);
  });
}

TEST_P(ReducerSuite, NobodyWithDataGivesZeroWhateverWasWritten) {
  run([](const Group& group) {
    Reducer reducer(kSix, group, kTwoEach);
    for (int step = 0; step < 2; ++step) {
      reducer.begin_step({.weight = 0});
      backward(group, reducer, std::nan(""));
      finish(group, reducer, 0);
      for (int p = 0; p < 6; ++p) EXPECT_EQ(first(group, reducer, p), 0.0f);
    }
  });
}

TEST_P(ReducerSuite, AccumulatesMicroBatchesOfUnequalNumber) {
  run([](const Group& group) {
    Reducer reducer(kSix, group, kTwoEach);
    const int others = group->size() - 1;
    for (int step = 0; step < 3; ++step) {
      const int micro_batches = group->rank() == 0 ? 3 : 1;
      for (int m = 1; m <= micro_batches; ++m) {
        reducer.begin_step({.weight = 2, .synchronize = m == micro_batches});
        EXPECT_EQ(reducer.accumulating(), m > 1);
        backward(group, reducer, 2.0 * m);
        if (m == micro_batches) {
          finish(group, reducer, 6 + 2 * others);
        } else {
          EXPECT_EQ(reducer.finish_step(), 2 * m);
        }
      }
      EXPECT_FALSE(reducer.accumulating());
      // 2*1 + 2*2 + 2*3 of rank 0, and 2*1 of each other.
      EXPECT_FLOAT_EQ(first(group, reducer, 3),
                      4.0f * static_cast<float>(12 + 2 * others) / static_cast<float>(6 + 2 * others));
    }
  });
}

TEST_P(ReducerSuite, AnUnmarkedGradientCountsAsZeroInItsMicroBatchOnly) {
  run([](const Group& group) {
    Reducer reducer(kSix, group, kTwoEach);
    reducer.begin_step({.weight = 1});
    backward(group, reducer, 1000);  // stale in the next step
    reducer.finish_step();
    reducer.begin_step({.weight = 1, .synchronize = false});
    write_gradient(*group, reducer, 0, 1);  // a in the first micro-batch only
    reducer.mark_ready(0);
    reducer.finish_step();
    reducer.begin_step({.weight = 1});
    write_gradient(*group, reducer, 5, 10);  // f in the second only
    reducer.mark_ready(5);
    reducer.mark_unused(4);
    finish(group, reducer, 2 * group->size());
    EXPECT_FLOAT_EQ(first(group, reducer, 0), 0.5f);
    EXPECT_FLOAT_EQ(first(group, reducer, 5), 5.0f);
    for (int p = 1; p < 5; ++p) EXPECT_EQ(first(group, reducer, p), 0.0f) << p;

    reducer.begin_step({.weight = 1});
    reducer.finish_step();
    for (int p = 0; p < 6; ++p) EXPECT_EQ(first(group, reducer, p), 0.0f) << p;
  });
}

TEST_P(ReducerSuite, KeepsPaddingZero) {
  run([](const Group& group) {
    Reducer reducer(kSix, group, kTwoEach);
    for (int step = 0; step < 3; ++step) {
      reducer.begin_step({.weight = 3});
      backward(group, reducer, 7);
      reducer.finish_step();
      const auto e = gradient_of(*group, reducer, 4, 13);
      for (std::size_t i = 3; i < 16; ++i) EXPECT_EQ(e[i], 0.0f) << "step " << step;
    }
  });
}

TEST_P(ReducerSuite, ReducesEveryDtypeInBucketsOfItsOwn) {
  run([](const Group& group) {
    std::vector<ParameterSpec> specs;
    for (const DType dtype : {DType::f32, DType::bf16, DType::f64, DType::f16, DType::bf16}) {
      specs.push_back({"p" + std::to_string(specs.size()), dtype, {33}});
    }
    Reducer reducer(specs, group);
    EXPECT_EQ(reducer.plan().buckets.size(), 4u);
    // Weights 1, 2, 3 ..., mean gradients 4, 8, 12 ..., whose sums are exact in 16 bits.
    double sum = 0, total = 0;
    for (int weight = 1; weight <= group->size(); ++weight) {
      sum += weight * weight * 4;
      total += weight;
    }
    const int weight = group->rank() + 1;
    const double value = weight * weight * 4;
    constexpr double kNoFloat = 1e300;  // only float64 has numbers of this size
    for (int step = 0; step < 3; ++step) {
      reducer.begin_step({.weight = weight});
      write_gradient<float>(*group, reducer, 0, value);
      write_gradient<bfloat16>(*group, reducer, 1, value);
      write_gradient<double>(*group, reducer, 2, value * kNoFloat);
      write_gradient<float16>(*group, reducer, 3, value);
      write_gradient<bfloat16>(*group, reducer, 4, value);
      for (int p = 4; p >= 0; --p) reducer.mark_ready(p);
      finish(group, reducer, static_cast<std::int64_t>(total));
      const double mean = sum / total;
      const auto last = [&]<typename T>(T, int p) { return number(gradient_of<T>(*group, reducer, p)[32]); };
      EXPECT_NEAR(last(float{}, 0), mean, 1e-6 * mean);
      EXPECT_NEAR(last(bfloat16{}, 1), mean, mean / 256);
      EXPECT_NEAR(last(double{}, 2) / kNoFloat, mean, 1e-15 * mean);
      EXPECT_NEAR(last(float16{}, 3), mean, mean / 2048);
      EXPECT_NEAR(last(bfloat16{}, 4), mean, mean / 256);
    }
  });
}

TEST_P(ReducerSuite, PlansAnewOnceInTheOrderThatRank0Saw) {
  run([](const Group& group) {
    Reducer reducer(kSix, group, kTwoEach);
    const int ranks = group->size();
    for (int step = 0; step < 4; ++step) {
      // What is seen in an unsynchronised micro-batch doesn't count.
      reducer.begin_step({.weight = 1, .synchronize = false});
      EXPECT_EQ(reducer.plan_changes(), step == 0 ? 0 : 1);
      backward(group, reducer, 1);
      reducer.finish_step();
      const BucketPlan before = reducer.plan();
      reducer.begin_step({.weight = 1});
      EXPECT_EQ(reducer.plan().buckets[0].parameters, before.buckets[0].parameters) << "moved while it held gradients";
      if (group->rank() == 0) {
        for (const int p : {0, 1, 2, 3, 4}) {  // f is never ready
          write_gradient(*group, reducer, p, 1);
          reducer.mark_ready(p);
        }
      } else {
        backward(group, reducer, 1);
      }
      finish(group, reducer, 2 * ranks);
      for (int p = 0; p < 6; ++p) {
        const int sum = ranks * (p + 1) + (p == 5 ? 0 : 1) + (ranks - 1) * (p + 1);
        EXPECT_FLOAT_EQ(first(group, reducer, p), static_cast<float>(sum) / static_cast<float>(2 * ranks)) << step;
      }
    }
    EXPECT_EQ(reducer.plan().buckets[0].parameters, (std::vector<int>{0, 1}));
    EXPECT_EQ(reducer.plan().buckets[2].parameters, (std::vector<int>{4, 5}));
  });
}

TEST_P(ReducerSuite, FollowsThePlannedOrderOfRank0FromTheFirstStep) {
  run([](const Group& group) {
    Reducer reducer(kSix, group, kTwoEach);
    // Only rank 0's counts: an order of another length elsewhere does no harm.
    reducer.plan_order(group->rank() == 0 ? std::vector<int>{1, 3, 5, 0, 2, 4} : std::vector<int>{0});
    EXPECT_EQ(reducer.plan_changes(), 1);
    EXPECT_EQ(reducer.plan().buckets[0].parameters, (std::vector<int>{1, 3}));
    for (int step = 0; step < 3; ++step) {
      reducer.begin_step({.weight = 1});
      backward(group, reducer, 1);
      reducer.finish_step();
      EXPECT_EQ(reducer.plan_changes(), 1);
      EXPECT_FLOAT_EQ(first(group, reducer, 4), 5.0f);
    }
    EXPECT_THROW(reducer.plan_order(kBackward), InvalidArgument);
  });
}

TEST_P(ReducerSuite, EveryRankLearnsWhatAnyRankUsed) {
  for (const BucketOptions& buckets : {kTwoEach.buckets, BucketOptions{}}) {
    run([&](const Group& group) {
      Reducer reducer(kSix, group, {.buckets = buckets, .track_unused = true});
      reducer.plan_order(kBackward);
      const auto used = [&] {
        std::string text;
        for (int p = 0; p < 6; ++p) text += reducer.used_anywhere(p) ? 'x' : '-';
        return text;
      };
      EXPECT_EQ(used(), "------") << "before the first step";
      // Asked in every step, or after several that nobody asked for: the host may be ahead.
      for (const int ahead : {1, 1, 5}) {
        for (int k = 0; k < ahead; ++k) {
          reducer.begin_step({.weight = 2});
          write_gradient(*group, reducer, 3, 2);
          reducer.mark_ready(3);
          const int rare = k == 3 ? 5 : k;
          if (group->rank() == k % group->size()) {
            write_gradient(*group, reducer, rare, 6);
            reducer.mark_ready(rare);
          }
          reducer.finish_step();
        }
        EXPECT_EQ(used(), ahead == 1 ? "x--x--" : "---xx-");
        EXPECT_EQ(reducer.total_weight(), 2 * group->size());
        EXPECT_FLOAT_EQ(first(group, reducer, ahead - 1), 3.0f / static_cast<float>(group->size()));
        EXPECT_EQ(first(group, reducer, 3), 1.0f);
        EXPECT_EQ(first(group, reducer, 5), 0.0f);
      }
      // What was used is of each step anew.
      reducer.begin_step({.weight = 2});
      reducer.finish_step();
      EXPECT_EQ(used(), "------");
    });
  }
}

TEST_P(ReducerSuite, TellsTwoReducersOfOneGroupApart) {
  run([](const Group& group) {
    Reducer one(kSix, group);
    Reducer other({{"x", DType::f32, {3}}}, group);
    other.begin_step();
    one.begin_step();
    backward(group, other, 1);
    other.finish_step();
    backward(group, one, 2);
    one.finish_step();
    EXPECT_FLOAT_EQ(first(group, other, 0), 1.0f);
    EXPECT_FLOAT_EQ(first(group, one, 2), 6.0f);
  });
}

// On a device the memory of one that has gone may be another's before the device is through with it.
TEST_P(ReducerSuite, ReducersMayFollowEachOtherWithoutAWait) {
  run([](const Group& group) {
    for (int round = 0; round < 5; ++round) {
      Reducer reducer(kSix, group, {.buckets = kTwoEach.buckets, .track_unused = true});
      for (int step = 0; step < 2; ++step) {
        reducer.begin_step({.weight = 1});
        backward(group, reducer, round);
        reducer.finish_step();
      }
      if (round == 4) {
        EXPECT_EQ(first(group, reducer, 1), 8.0f);
      }
    }
  });
}

// Weights that are different on every rank, until rank 0's are told to all, and an optimizer in the group's stream.
class Replica {
 public:
  Replica(const Group& group, std::vector<ParameterSpec> specs) : group_(group), specs_(std::move(specs)) {
    for (const ParameterSpec& spec : specs_) {
      memory_.push_back(device_runtime(group->device().kind).allocate(spec.bytes(), group->stream()));
      named_.push_back({spec.name, BufferView(memory_.back().get(), spec.count(), DType::f32, group->device())});
      change(named_.size() - 1, "init", [rank = group->rank()](float* data, std::int64_t count) {
        std::fill_n(data, count, static_cast<float>(rank + 1));
      });
    }
  }
  const std::vector<NamedBuffer>& named() const { return named_; }
  void broadcast() {
    std::vector<BufferView> views;
    for (const NamedBuffer& it : named_) views.push_back(it.value);
    broadcast_parameters(*group_, views);
  }
  void change(std::size_t p, const std::string& what, std::function<void(float*, std::int64_t)> body) {
    launch<float>(group_->stream(), what, static_cast<float*>(memory_[p].get()), specs_[p].count(), std::move(body));
  }
  void optimize(Reducer& reducer) {
    for (std::size_t p = 0; p < specs_.size(); ++p) {
      enqueue(group_->stream(), {.name = "sgd",
                                 .data = memory_[p].get(),
                                 .bytes = specs_[p].bytes(),
                                 .source = reducer.gradient<float>(static_cast<int>(p)),
                                 .body = [count = specs_[p].count()](void* data, const void* source) {
                                   auto* const weights = static_cast<float*>(data);
                                   const auto* const gradient = static_cast<const float*>(source);
                                   for (std::int64_t i = 0; i < count; ++i) weights[i] -= 0.1f * gradient[i];
                                 }});
    }
  }

 private:
  Group group_;
  std::vector<ParameterSpec> specs_;
  std::vector<std::shared_ptr<void>> memory_;
  std::vector<NamedBuffer> named_;
};

TEST_P(ReducerSuite, KeepsReplicasBitEqual) {
  run([](const Group& group) {
    const bool on_host = group->device().kind == DeviceKind::cpu;
    // On a device the host runs ahead, but where it compares the replicas.
    const std::uint64_t steps = on_host ? 200 : 50;
    const std::uint64_t every = on_host ? 1 : 10;
    std::vector<ParameterSpec> specs{{"w", DType::f32, {61, 17}}, {"b", DType::f32, {17}}, {"s", DType::f32, {}}};
    if (!on_host) specs.push_back({"big", DType::f32, {300'000}});
    Replica replica(group, specs);
    const bool alone = group->size() == 1;
    if (!alone) {
      EXPECT_THROW(check_replicas(*group, replica.named()), Mismatch);
    }
    replica.broadcast();
    Reducer reducer(specs, group, {{.cap_bytes = 1024, .first_cap_bytes = 512}});
    std::uint64_t before = check_replicas(*group, replica.named());
    for (std::uint64_t step = 0; step < steps; ++step) {
      const auto rank = static_cast<std::uint64_t>(group->rank());
      const auto weight = static_cast<std::int64_t>(1 + (step + rank) % 3);
      reducer.begin_step({.weight = weight});
      for (const int p : shuffled(specs.size(), step, rank)) {
        write_gradient(*group, reducer, p, [=](std::int64_t i) {
          return static_cast<double>(weight) *
                 std::sin(static_cast<double>(step * 7 + rank * 3) + static_cast<double>(i));
        });
        reducer.mark_ready(p);
      }
      reducer.finish_step();
      replica.optimize(reducer);
      if (step % every != every - 1) continue;
      const std::uint64_t hash = check_replicas(*group, replica.named());
      EXPECT_NE(hash, before) << "step " << step << " trained nothing";
      EXPECT_EQ(hash, hash_replica(replica.named(), group->stream()));
      before = hash;
    }
    if (alone) return;
    // The check can fail: one bit on one rank.
    replica.change(1, "harm", [group](float* data, std::int64_t) {
      if (group->rank() == 1) data[3] = std::nextafterf(data[3], 1e9f);
    });
    expect_text(error_of<Mismatch>([&] { check_replicas(*group, replica.named()); }),
                {group->size() == 2 ? "parameter 1, 'b': ranks 0 and 1 differ" : "parameter 1, 'b': rank 1 differs"});
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ReducerSuite, ::testing::ValuesIn(kWorldSizes));

}  // namespace
}  // namespace lockstep::testing::steps_test
