// The Reducer on a device: over NCCL, with fakes of the CUDA runtime and of NCCL, ranks as threads. The fake runtime
// ends the process at the first use of memory that nothing orders, in every test here.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <latch>
#include <numeric>
#include <optional>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/base/random.h"
#include "runtime/ddp/broadcast_parameters.h"
#include "runtime/ddp/divergence_check.h"
#include "runtime/ddp/replica_check.h"
#include "runtime/device/device_runtime.h"
#include "tests/conformance/errors.h"
#include "tests/fakes/cudart/fake_cuda.h"
#include "tests/fakes/nccl/fake_nccl.h"
#include "tests/multirank/device_gradients.h"
#include "tests/support/rank_threads.h"

namespace lockstep::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

// Three buckets of two, in reverse order of registration: (f,e), (d,c), (b,a).
const std::vector<ParameterSpec> kSix{{"a", DType::f32, {16}}, {"b", DType::f32, {2, 8}}, {"c", DType::f32, {16}},
                                      {"d", DType::f32, {16}}, {"e", DType::f32, {3}},    {"f", DType::f32, {16}}};
constexpr ReducerOptions kTwoEach{{.cap_bytes = 128, .first_cap_bytes = 128}};
const std::vector<int> kBackward{5, 4, 3, 2, 1, 0};

// A stream of the rank's own, as a program with kernels has it.
struct Compute {
  explicit Compute(const Group& group) : stream(group->device()) { group->set_stream(stream); }
  Stream stream;
};

// `value` times the parameter's number plus one everywhere, last layer first.
void backward(const Group& group, Reducer& reducer, double value) {
  for (int p = static_cast<int>(reducer.parameters().size()) - 1; p >= 0; --p) {
    write_gradient(*group, reducer, p, value * (p + 1));
    reducer.mark_ready(p);
  }
}
float first(const Group& group, Reducer& reducer, int parameter) {
  return gradient_of(*group, reducer, parameter).front();
}

std::vector<int> shuffled(std::size_t n, std::uint64_t seed, std::uint64_t stream) {
  std::vector<int> order(n);
  std::iota(order.begin(), order.end(), 0);
  Generator random(seed, stream);
  for (std::size_t i = n; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

TEST(NcclReducer, TakesTheMeanOverUnevenShards) {
  for (const int ranks : {1, 2, 3, 4}) {
    run_ranks(ranks, [](const Group& group) {
      const Compute compute(group);
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
        EXPECT_EQ(reducer.finish_step(), -1) << "not known without a wait";
        for (int p = 0; p < 6; ++p) {
          EXPECT_FLOAT_EQ(first(group, reducer, p), static_cast<float>((p + 1) * sum / static_cast<double>(total)));
        }
        EXPECT_EQ(reducer.total_weight(), total);
        EXPECT_EQ(reducer.total_weight(), total) << "asked again";
      }
    });
  }
}

TEST(NcclReducer, NobodyWithDataGivesZeroWhateverWasWritten) {
  run_ranks(2, [](const Group& group) {
    const Compute compute(group);
    Reducer reducer(kSix, group, kTwoEach);
    for (int step = 0; step < 2; ++step) {
      reducer.begin_step({.weight = 0});
      backward(group, reducer, std::nan(""));
      reducer.finish_step();
      for (int p = 0; p < 6; ++p) EXPECT_EQ(first(group, reducer, p), 0.0f);
      EXPECT_EQ(reducer.total_weight(), 0);
    }
  });
}

// The map has been zeroed with the gradients: every rank must take the same for used. Where some rank has data, only
// those that have count.
TEST(NcclReducer, NobodyWithDataCountsAsUsingAll) {
  run_ranks(2, [](const Group& group) {
    const Compute compute(group);
    Reducer reducer(kSix, group, {.buckets = kTwoEach.buckets, .track_unused = true});
    EXPECT_FALSE(reducer.used_anywhere(5)) << "before the first step";
    const std::array<std::array<int, 2>, 4> weights = {{{0, 0}, {1, 1}, {0, 1}, {0, 0}}};
    for (const auto& by_rank : weights) {
      reducer.begin_step({.weight = by_rank[static_cast<std::size_t>(group->rank())]});
      if (group->rank() == 0) {
        write_gradient(*group, reducer, 5, 1);
        reducer.mark_ready(5);
      }
      reducer.finish_step();
      EXPECT_EQ(reducer.used_anywhere(5), by_rank[0] == by_rank[1]) << "one without rows uses nothing";
      EXPECT_EQ(reducer.used_anywhere(4), by_rank[1] == 0);
    }
  });
}

TEST(NcclReducer, AccumulatesMicroBatchesOfUnequalNumber) {
  run_ranks(2, [](const Group& group) {
    const Compute compute(group);
    Reducer reducer(kSix, group, kTwoEach);
    for (int step = 0; step < 3; ++step) {
      const int micro_batches = group->rank() == 0 ? 3 : 1;
      for (int m = 1; m <= micro_batches; ++m) {
        reducer.begin_step({.weight = 2, .synchronize = m == micro_batches});
        backward(group, reducer, 2.0 * m);
        EXPECT_EQ(reducer.finish_step(), m == micro_batches ? -1 : 2 * m);
      }
      EXPECT_EQ(reducer.total_weight(), 8);
      EXPECT_FLOAT_EQ(first(group, reducer, 3), 4.0f * 14.0f / 8.0f);
    }
  });
}

TEST(NcclReducer, AnUnmarkedGradientCountsAsZeroAndPaddingStaysZero) {
  run_ranks(2, [](const Group& group) {
    const Compute compute(group);
    Reducer reducer(kSix, group, kTwoEach);
    reducer.begin_step({.weight = 1});
    backward(group, reducer, 1000.0);  // stale in the next step
    reducer.finish_step();
    reducer.begin_step({.weight = 1, .synchronize = false});
    write_gradient(*group, reducer, 0, 1.0);
    reducer.mark_ready(0);
    reducer.finish_step();
    reducer.begin_step({.weight = 1});
    write_gradient(*group, reducer, 5, 10.0);
    reducer.mark_ready(5);
    reducer.mark_unused(4);
    reducer.finish_step();
    EXPECT_FLOAT_EQ(first(group, reducer, 0), 0.5f);
    EXPECT_FLOAT_EQ(first(group, reducer, 5), 5.0f);
    for (int p = 1; p < 5; ++p) EXPECT_EQ(first(group, reducer, p), 0.0f) << p;
    reducer.begin_step({.weight = 1});
    backward(group, reducer, 7);
    reducer.finish_step();
    const auto e = gradient_of(*group, reducer, 4, 13);
    for (std::size_t i = 3; i < 16; ++i) EXPECT_EQ(e[i], 0.0f);
  });
}

TEST(NcclReducer, ReducesEveryDtypeInBucketsOfItsOwn) {
  run_ranks(3, [](const Group& group) {
    const Compute compute(group);
    std::vector<ParameterSpec> specs;
    for (const DType dtype : {DType::f32, DType::bf16, DType::f64, DType::f16}) {
      specs.push_back({"p" + std::to_string(specs.size()), dtype, {33}});
    }
    Reducer reducer(specs, group);
    EXPECT_EQ(reducer.plan().buckets.size(), 4u);
    for (int step = 0; step < 3; ++step) {
      // Weights 1, 2, 3; mean gradients 4, 8, 12; all exact in 16 bits: 4 + 16 + 36 = 56 over 6.
      const int weight = group->rank() + 1;
      const double value = weight * weight * 4;
      reducer.begin_step({.weight = weight});
      write_gradient<float>(*group, reducer, 0, value);
      write_gradient<bfloat16>(*group, reducer, 1, value);
      write_gradient<double>(*group, reducer, 2, value);
      write_gradient<float16>(*group, reducer, 3, value);
      for (const int p : {3, 2, 1, 0}) reducer.mark_ready(p);
      reducer.finish_step();
      const double mean = 56.0 / 6.0;
      EXPECT_NEAR(static_cast<double>(gradient_of<float>(*group, reducer, 0)[32]), mean, 1e-6 * mean);
      EXPECT_NEAR(static_cast<double>(to_float(gradient_of<bfloat16>(*group, reducer, 1)[32])), mean, mean / 256);
      EXPECT_NEAR(gradient_of<double>(*group, reducer, 2)[32], mean, 1e-15 * mean);
      EXPECT_NEAR(static_cast<double>(to_float(gradient_of<float16>(*group, reducer, 3)[32])), mean, mean / 2048);
    }
  });
}

// The same steps on the CPU and on the devices, for any partition of the batch over ranks and micro-batches.
void compare_with_cpu(int ranks, std::uint64_t seed) {
  SCOPED_TRACE("ranks " + std::to_string(ranks) + ", seed " + std::to_string(seed));
  const std::vector<ParameterSpec> specs{
      {"w", DType::f32, {30, 7}}, {"b", DType::f32, {7}}, {"v", DType::f32, {7, 9}}, {"s", DType::f32, {}}};
  constexpr int kSteps = 3;
  const auto gradient = [seed](int step, int rank, int micro_batch, int p, std::int64_t i) {
    const auto bits = philox({static_cast<std::uint32_t>(step), static_cast<std::uint32_t>(rank * 8 + micro_batch),
                              static_cast<std::uint32_t>(p), static_cast<std::uint32_t>(i)},
                             {static_cast<std::uint32_t>(seed), 7});
    return static_cast<double>(2.0f * uniform01(bits[0]) - 1.0f);
  };
  std::vector<std::vector<std::vector<float>>> results(2);  // by backend: rank 0's gradients of all steps
  for (const bool on_device : {false, true}) {
    run_ranks(
        ranks,
        [&](const Group& group) {
          std::optional<Compute> compute;
          if (on_device) compute.emplace(group);
          const int rank = group->rank();
          Reducer reducer(specs, group, {{.cap_bytes = 512, .first_cap_bytes = 128}});
          for (int step = 0; step < kSteps; ++step) {
            Generator random(seed, static_cast<std::uint64_t>(rank * 100 + step));
            const int micro_batches = 1 + static_cast<int>(random.below(3));
            for (int m = 0; m < micro_batches; ++m) {
              const auto weight = static_cast<std::int64_t>(random.below(4));
              reducer.begin_step({.weight = weight, .synchronize = m + 1 == micro_batches});
              for (const int p : shuffled(weight == 0 ? 0 : specs.size(), seed, static_cast<std::uint64_t>(rank))) {
                const auto of = [=](std::int64_t i) { return gradient(step, rank, m, p, i); };
                if (on_device) {
                  write_gradient(*group, reducer, p, of);
                } else {
                  float* const to = reducer.gradient<float>(p);
                  for (std::int64_t i = 0; i < specs[static_cast<std::size_t>(p)].count(); ++i) {
                    to[i] = static_cast<float>((reducer.accumulating() ? static_cast<double>(to[i]) : 0.0) + of(i));
                  }
                }
                reducer.mark_ready(p);
              }
              reducer.finish_step();
            }
            if (rank != 0) continue;
            for (int p = 0; p < static_cast<int>(specs.size()); ++p) {
              auto& all = results[on_device ? 1 : 0];
              if (on_device) {
                all.push_back(gradient_of(*group, reducer, p));
              } else {
                const float* const from = reducer.gradient<float>(p);
                all.emplace_back(from, from + specs[static_cast<std::size_t>(p)].count());
              }
            }
          }
        },
        {.backend = on_device    ? "nccl"
                    : ranks == 1 ? "single"
                                 : "shm"});
  }
  ASSERT_EQ(results[0].size(), results[1].size());
  for (std::size_t k = 0; k < results[0].size(); ++k) {
    float largest = 0, worst = 0;
    for (std::size_t i = 0; i < results[0][k].size(); ++i) {
      largest = std::max(largest, std::abs(results[0][k][i]));
      const float apart = std::abs(results[0][k][i] - results[1][k][i]);
      worst = std::isnan(apart) ? INFINITY : std::max(worst, apart);
    }
    EXPECT_LE(worst, 1e-5f * largest) << "result " << k;
  }
}

TEST(NcclReducer, GradientsAreThoseOfTheCpuForRandomPartitions) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (std::uint64_t seed = 0; seed < 4; ++seed) compare_with_cpu(ranks, seed);
  }
}

TEST(NcclReducer, LaunchesBucketsInOneOrderWhateverIsReadyFirst) {
  // Buckets of 16, 32, 48 and 64 elements tell themselves apart.
  const std::vector<ParameterSpec> specs{
      {"a", DType::f32, {64}}, {"b", DType::f32, {48}}, {"c", DType::f32, {32}}, {"d", DType::f32, {16}}};
  constexpr int kRanks = 3;
  constexpr int kSteps = 4;
  fake_nccl::take_calls();
  run_ranks(kRanks, [&](const Group& group) {
    const Compute compute(group);
    Reducer reducer(specs, group, {{.cap_bytes = 0, .first_cap_bytes = 0}});
    reducer.plan_order(std::vector<int>{3, 2, 1, 0});
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      reducer.begin_step({.weight = 1});
      for (const int p : shuffled(4, step, static_cast<std::uint64_t>(group->rank()))) {
        write_gradient(*group, reducer, p, p);
        reducer.mark_ready(p);
      }
      reducer.finish_step();
    }
    for (int p = 0; p < 4; ++p) EXPECT_EQ(first(group, reducer, p), static_cast<float>(p));
  });
  // Buckets that differ between the ranks hang in the fake, as they may in NCCL. Of all ranks' calls, each in its
  // order: no bucket ever comes more often than the one before it.
  std::vector<int> times(4);
  for (const std::string& call : fake_nccl::take_calls()) {
    for (std::size_t bucket = 0; bucket < 4; ++bucket) {
      if (call == "  all_reduce " + std::to_string(16 * (bucket + 1)) + " float32 sum") ++times[bucket];
    }
    EXPECT_TRUE(std::is_sorted(times.rbegin(), times.rend())) << call;
  }
  EXPECT_EQ(times, std::vector<int>(4, kRanks * kSteps));
}

TEST(NcclReducer, PlansAnewOnceInTheOrderThatRank0Saw) {
  run_ranks(3, [](const Group& group) {
    const Compute compute(group);
    Reducer reducer(kSix, group, kTwoEach);
    for (int step = 0; step < 4; ++step) {
      reducer.begin_step({.weight = 1});
      EXPECT_EQ(reducer.plan_changes(), step == 0 ? 0 : 1);
      if (group->rank() == 0) {
        for (const int p : {0, 1, 2, 3, 4}) {  // f is never ready
          write_gradient(*group, reducer, p, p + 1);
          reducer.mark_ready(p);
        }
      } else {
        backward(group, reducer, 1);
      }
      reducer.finish_step();
      for (int p = 0; p < 5; ++p) EXPECT_FLOAT_EQ(first(group, reducer, p), static_cast<float>(p + 1)) << step;
      EXPECT_FLOAT_EQ(first(group, reducer, 5), 4.0f);
    }
    EXPECT_EQ(reducer.plan().buckets[0].parameters, (std::vector<int>{0, 1}));
  });
}

TEST(NcclReducer, EveryRankLearnsWhatAnyRankUsed) {
  run_ranks(3, [](const Group& group) {
    const Compute compute(group);
    Reducer reducer(kSix, group, {.buckets = kTwoEach.buckets, .track_unused = true});
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
        if (group->rank() == k % 3) {
          write_gradient(*group, reducer, k, 6);
          reducer.mark_ready(k == 3 ? 4 : k);
        }
        reducer.finish_step();
      }
      EXPECT_EQ(used(), ahead == 1 ? "x--x--" : "---xx-");
      EXPECT_EQ(reducer.total_weight(), 6);
    }
    reducer.begin_step({.weight = 0});
    reducer.finish_step();
    EXPECT_EQ(used(), "xxxxxx") << "nobody can say";
  });
}

// The host is held up by nothing, and the device takes no new memory, from the third step on.
TEST(NcclReducer, AStepMakesTheHostWaitForNothing) {
  constexpr int kRanks = 2;
  std::latch warm(kRanks), counted(kRanks), over(kRanks);
  std::int64_t waits = 0;
  DeviceCounters counters;
  run_ranks(kRanks, [&](const Group& group) {
    const Compute compute(group);
    DeviceRuntime& cuda = device_runtime(DeviceKind::cuda);
    Reducer reducer(kSix, group, {.buckets = kTwoEach.buckets, .track_unused = true});
    reducer.plan_order(kBackward);
    const auto step = [&](bool synchronize) {
      reducer.begin_step({.weight = 1, .synchronize = synchronize});
      for (const int p : {5, 4, 3, 1, 0}) {
        write_gradient(*group, reducer, p, p);
        reducer.mark_ready(p);
      }
      if (group->rank() == 1) reducer.mark_unused(2);
      reducer.finish_step();
      reducer.last_step();
    };
    for (int k = 0; k < 40; ++k) step(k % 4 != 0);
    reducer.total_weight();
    compute.stream.synchronize(copy_deadline());
    warm.arrive_and_wait();
    if (group->rank() == 0) {
      waits = fake_cuda::host_synchronisations();
      counters = cuda.counters();
    }
    counted.arrive_and_wait();
    for (int k = 0; k < 20; ++k) step(k % 4 != 0);
    over.arrive_and_wait();
    if (group->rank() == 0) {
      EXPECT_EQ(fake_cuda::host_synchronisations(), waits);
      EXPECT_EQ(cuda.counters().host_waits, counters.host_waits);
    }
    group->barrier().wait();
    EXPECT_EQ(first(group, reducer, 2), 0.0f);
  });
}

TEST(NcclReducer, TheRecordOfAStepIsOfTheDevicesTime) {
  run_ranks(2, [](const Group& group) {
    const Compute compute(group);
    Reducer reducer(kSix, group, kTwoEach);
    reducer.plan_order(kBackward);
    EXPECT_EQ(reducer.last_step().step, -1);
    std::atomic<bool> go = false;
    for (int step = 0; step < 4; ++step) {
      go = false;
      reducer.begin_step({.weight = 1});
      for (const int p : kBackward) {
        write_gradient(*group, reducer, p, 1);
        // The host is through with the step long before the device is.
        if (p == 0) {
          launch<float>(group->stream(), "a long backward", reducer.gradient<float>(p), 16,
                        [&go](float*, std::int64_t) {
                          while (!go) std::this_thread::yield();
                        });
        }
        reducer.mark_ready(p);
      }
      reducer.finish_step();
      EXPECT_EQ(reducer.last_step().step, step - 1) << "this step has not ended on the device";
      go = true;
      compute.stream.synchronize(copy_deadline());
      const trace::StepRecord& record = reducer.last_step();
      ASSERT_EQ(record.step, step);
      EXPECT_EQ(record.gradients_ready, 6);
      ASSERT_EQ(record.buckets.size(), 3u);
      EXPECT_LE(record.begin, record.buckets[0].ready);
      EXPECT_LE(record.last_gradient_ready, record.end);
      for (std::size_t b = 0; b < 3; ++b) {
        EXPECT_EQ(record.buckets[b].bytes, 128u);
        EXPECT_EQ(record.buckets[b].gradients_ready, static_cast<int>(2 * b + 2));
        EXPECT_LE(record.buckets[b].ready, record.buckets[b].launched);
        EXPECT_LE(record.buckets[b].launched, record.buckets[b].finished);
        EXPECT_LE(record.buckets[b].finished, record.end);
      }
      // The last bucket could not start before backward had ended.
      EXPECT_LE(record.buckets[1].launched, record.buckets[2].launched);
      EXPECT_EQ(record.waited, record.end - record.last_gradient_ready);
      EXPECT_GE(record.hidden.count(), 0);
      EXPECT_EQ(record.hidden, record.under_way);
      EXPECT_LE(record.under_way, record.last_gradient_ready - record.begin);
    }
  });
}

TEST(NcclReducer, FollowsAStreamThatIsSetBetweenSteps) {
  run_ranks(2, [](const Group& group) {
    const Stream one(group->device()), other(group->device());
    Reducer reducer(kSix, group, kTwoEach);  // on the default stream so far
    for (int step = 0; step < 6; ++step) {
      group->set_stream(step % 2 == 0 ? one : other);
      reducer.begin_step({.weight = 1});
      backward(group, reducer, step);
      reducer.finish_step();
    }
    EXPECT_EQ(first(group, reducer, 1), 10.0f);
  });
}

TEST(NcclReducer, AStreamMayGoOnceAnotherIsSet) {
  run_ranks(2, [](const Group& group) {
    ASSERT_EQ(cudaSetDevice(group->device().index), cudaSuccess);
    cudaStream_t stream = nullptr;
    const auto move_on = [&] {
      cudaStream_t next = nullptr;
      ASSERT_EQ(cudaStreamCreateWithFlags(&next, cudaStreamNonBlocking), cudaSuccess);
      group->set_stream({group->device(), next});
      if (stream != nullptr) {
        ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
      }
      stream = next;
    };
    move_on();
    Reducer reducer(kSix, group, {.buckets = kTwoEach.buckets, .track_unused = true});
    move_on();
    reducer.plan_order(kBackward);
    for (int step = 0; step < 3; ++step) {
      for (const bool synchronize : {false, true}) {
        move_on();
        reducer.begin_step({.weight = 1, .synchronize = synchronize});
        backward(group, reducer, 2);
        reducer.finish_step();
      }
    }
    EXPECT_EQ(first(group, reducer, 1), 4.0f);
    group->set_stream({group->device(), nullptr});
    ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  });
}

// One step with each kind of wait in it.
void two_steps() {
  run_ranks(2, [](const Group& group) {
    const Compute compute(group);
    Reducer reducer(kSix, group, {.buckets = kTwoEach.buckets, .track_unused = true});
    reducer.plan_order(kBackward);
    // What comes before is reached: the steps alone wait for what they need.
    compute.stream.synchronize(copy_deadline());
    std::array<std::atomic<bool>, 2> go = {};
    for (std::atomic<bool>& may_end : go) {
      reducer.begin_step({.weight = 1});
      for (const int p : kBackward) {
        write_gradient(*group, reducer, p, 1);
        // Nothing has ended before all waits are in their streams, else they would not be needed.
        launch<float>(group->stream(), "the end of backward", reducer.gradient<float>(p), 1, [&](float*, std::int64_t) {
          while (!may_end) std::this_thread::yield();
        });
        reducer.mark_ready(p);
      }
      reducer.finish_step();
      // The optimizer reads all of them.
      for (const int p : kBackward) write_gradient(*group, reducer, p, 0);
      may_end = true;
    }
    compute.stream.synchronize(copy_deadline());
  });
}

// Takes away one wait of a stream for an event after the other: each must be seen to be missing. The first of them is
// the communication stream's for the gradients of the first bucket.
TEST(NcclReducer, EveryWaitOfAStepIsNeeded) {
  fake_cuda::Violations violations;
  const std::int64_t before = fake_cuda::calls("cudaStreamWaitEvent");
  two_steps();
  const std::int64_t waits = fake_cuda::calls("cudaStreamWaitEvent") - before;
  EXPECT_EQ(violations.take(), std::vector<std::string>{});
  ASSERT_EQ(waits, 2 * 2 * (4 + 1)) << "two ranks, two steps: before four buckets, and behind them all";
  for (std::int64_t k = 1; k <= waits; ++k) {
    fake_cuda::inject("cudaStreamWaitEvent=skip@" + std::to_string(k));
    two_steps();
    fake_cuda::heal();
    const auto seen = violations.take();
    ASSERT_FALSE(seen.empty()) << "nothing notices that wait " << k << " of " << waits << " is missing";
    expect_text(seen[0], {"in no order with"});
  }
}

TEST(NcclReducer, KeepsReplicasBitEqualForFiftySteps) {
  for (const int ranks : {2, 3, 4}) {
    run_ranks(ranks, [](const Group& group) {
      const Compute compute(group);
      DeviceRuntime& cuda = device_runtime(DeviceKind::cuda);
      const std::vector<ParameterSpec> specs{
          {"w", DType::f32, {61, 17}}, {"b", DType::f32, {17}}, {"big", DType::f32, {300'000}}, {"s", DType::f32, {}}};
      std::vector<std::shared_ptr<void>> weights;
      std::vector<NamedBuffer> named;
      std::vector<BufferView> views;
      for (const auto& spec : specs) {
        weights.push_back(cuda.allocate(spec.bytes(), compute.stream));
        views.emplace_back(weights.back().get(), spec.count(), DType::f32, group->device());
        named.push_back({spec.name, views.back()});
        // Different on every rank, until rank 0's are told to all.
        launch<float>(compute.stream, "init", static_cast<float*>(weights.back().get()), spec.count(),
                      [rank = group->rank()](float* data, std::int64_t count) {
                        std::fill_n(data, count, static_cast<float>(rank + 1));
                      });
      }
      EXPECT_THROW(check_replicas(*group, named), Mismatch);
      broadcast_parameters(*group, views);
      Reducer reducer(specs, group, {{.cap_bytes = 1024, .first_cap_bytes = 512}});
      std::uint64_t before = check_replicas(*group, named);
      for (std::uint64_t step = 0; step < 50; ++step) {
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
        for (std::size_t p = 0; p < specs.size(); ++p) {
          auto* const gradient =
              static_cast<float*>(fake_cuda::host_address(reducer.gradient<float>(static_cast<int>(p))));
          auto* const weight_data = static_cast<float*>(weights[p].get());
          const fake_cuda::Range reads{reducer.gradient<float>(static_cast<int>(p)), specs[p].bytes()};
          const fake_cuda::Range both{weight_data, specs[p].bytes()};
          fake_cuda::enqueue(
              static_cast<cudaStream_t>(compute.stream.view().handle), "sgd",
              [gradient, count = specs[p].count(), data = static_cast<float*>(fake_cuda::host_address(weight_data))] {
                for (std::int64_t i = 0; i < count; ++i) data[i] -= 0.1f * gradient[i];
              },
              {reads, both}, {both});
        }
        if (step % 10 != 9) continue;
        const std::uint64_t hash = check_replicas(*group, named);
        EXPECT_NE(hash, before) << "step " << step << " trained nothing";
        EXPECT_EQ(hash, hash_replica(named, compute.stream));
        before = hash;
      }
      // The check can fail: one bit on one rank.
      launch<float>(compute.stream, "harm", static_cast<float*>(weights[1].get()), 4,
                    [group](float* data, std::int64_t) {
                      if (group->rank() == 1) data[3] = std::nextafterf(data[3], 1e9f);
                    });
      EXPECT_TRUE(error_of<Mismatch>([&] { check_replicas(*group, named); }).find("parameter 1, 'b': rank 1 differs") !=
                  std::string::npos);
    });
  }
}

// The host is through with two steps before the device is with the first; the third reads the first one's note.
TEST(NcclReducer, ANoteIsReadTwoStepsLaterAlikeOnAllRanks) {
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [](const Group& group) {
      const Compute compute(group);
      Reducer reducer(kSix, group, kTwoEach);
      reducer.plan_order(kBackward);
      std::atomic<bool> go = false;
      const auto differ = [](std::int64_t step) { return step == 0 || step % 5 == 3; };
      for (std::int64_t step = 0; step < 12; ++step) {
        // Micro-batches carry none. A rank without data has its say.
        reducer.begin_step({.weight = group->rank(), .synchronize = false, .note = {.versions = 1000 + group->rank()}});
        reducer.finish_step();
        if (step == 2) go = true;
        const std::int64_t own = differ(step) ? group->rank() - 1 : step;
        reducer.begin_step({.weight = 0, .note = {.versions = own, .digest = -own}});
        EXPECT_EQ(reducer.noted().step, std::max<std::int64_t>(step - 2, -1));
        if (step >= 2) {
          EXPECT_EQ(reducer.noted().of_all.versions, group->size() == 1 || !differ(step - 2)) << step;
          EXPECT_EQ(reducer.noted().of_all.digest, group->size() == 1 || !differ(step - 2)) << step;
        }
        if (step == 0) {
          launch<float>(group->stream(), "a long backward", reducer.gradient<float>(5), 16,
                        [&go](float*, std::int64_t) {
                          while (!go) std::this_thread::yield();
                        });
        }
        backward(group, reducer, 1);
        reducer.finish_step();
      }
      compute.stream.synchronize(copy_deadline());
    });
  }
}

TEST(NcclReducer, ReplicasThatComeApartAreFoundTwoStepsLaterOnAllRanks) {
  run_ranks(3, [](const Group& group) {
    const Compute compute(group);
    DeviceRuntime& cuda = device_runtime(DeviceKind::cuda);
    const auto weight = cuda.allocate(16 * sizeof(float), compute.stream);
    const auto write = [&](float value) {
      launch<float>(compute.stream, "sgd", static_cast<float*>(weight.get()), 16,
                    [value](float* data, std::int64_t count) { std::fill_n(data, count, value); });
    };
    write(0);
    Reducer reducer({{"a", DType::f32, {16}}}, group);
    std::uint64_t versions = 0;
    DivergenceCheck check(
        group, 0,
        {[&] { return versions; },
         [&] {
           return DivergenceCheck::Replica::State{{{"a", BufferView(weight.get(), 16, DType::f32, group->device())}}};
         }});
    const auto step = [&](std::int64_t number, bool optimize) {
      reducer.begin_step({.weight = 1, .note = check.note(number)});
      backward(group, reducer, 1);
      reducer.finish_step();
      check.judge(number, reducer.noted());
      if (!optimize) return;
      write(static_cast<float>(number));
      ++versions;
    };
    for (std::int64_t number = 0; number < 10; ++number) {
      if (number == 4 && group->rank() == 0) ++versions;  // over equal values
      step(number, true);
    }
    step(10, group->rank() != 2);
    step(11, true);
    step(12, true);
    // The last write has made them equal again, and their counts differ still: that is no error.
    step(13, true);
    step(14, group->rank() != 2);
    step(15, false);
    step(16, false);
    const std::string text = error_of<Mismatch>([&] { step(17, false); });
    expect_text(text, {"they came apart between step 13 and step 15", "'a': rank 2 differs from the others"});
  });
}

TEST(NcclReducer, ABufferOnAnotherDeviceIsRefused) {
  run_ranks(1, [](const Group& group) {
    std::array<BufferView, 1> elsewhere{BufferView(&elsewhere, 1, DType::f32, {DeviceKind::cuda, 3})};
    expect_text(error_of<InvalidArgument>([&] { broadcast_parameters(*group, elsewhere); }), {"cuda:3", "cuda:0"});
  });
}

TEST(NcclReducer, MisuseChangesNothing) {
  run_ranks(1, [](const Group& group) {
    const Compute compute(group);
    Reducer reducer(kSix, group, kTwoEach);
    reducer.begin_step({.weight = 2});
    backward(group, reducer, 2);
    EXPECT_THROW(reducer.mark_ready(3), InvalidArgument);
    expect_text(error_of<InvalidArgument>([&] { reducer.total_weight(); }), {"within step 0", "finish_step"});
    EXPECT_THROW(reducer.used_anywhere(0), InvalidArgument);
    reducer.finish_step();
    EXPECT_EQ(reducer.total_weight(), 2);
    EXPECT_EQ(first(group, reducer, 0), 1.0f);
    reducer.begin_step({.weight = 3});
    backward(group, reducer, 3);
    reducer.finish_step();
    // A world of one can go on after a backward that failed.
    reducer.begin_step({.weight = 4});
    write_gradient(*group, reducer, 5, 100);
    reducer.mark_ready(5);
    write_gradient(*group, reducer, 4, 100);
    reducer.mark_ready(4);
    reducer.abandon_step("backward threw");
    EXPECT_EQ(reducer.total_weight(), 3) << "of the last one that was finished";
    reducer.begin_step({.weight = 3});
    backward(group, reducer, 3);
    reducer.finish_step();
    EXPECT_EQ(reducer.total_weight(), 3);
    EXPECT_EQ(first(group, reducer, 4), 5.0f);
  });
}

// The memory of one that has gone may be another's before the device is through with it.
TEST(NcclReducer, ReducersMayFollowEachOtherWithoutAWait) {
  run_ranks(2, [](const Group& group) {
    const Compute compute(group);
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

TEST(NcclReducer, APeerThatLeavesInAStepIsSeenByAllInTheirs) {
  std::atomic<int> seen{0};
  run_ranks(3, [&](const Group& group) {
    const Compute compute(group);
    Reducer reducer(kSix, group, kTwoEach);
    for (int step = 0;; ++step) {
      try {
        reducer.begin_step({.weight = 1});
        for (const int p : kBackward) {
          if (step == 2 && group->rank() == 1 && p == 2) {
            group->abort("rank 1 has no more power");
            return;
          }
          write_gradient(*group, reducer, p, 1);
          reducer.mark_ready(p);
        }
        reducer.finish_step();
        reducer.total_weight();  // so that nobody runs steps ahead
      } catch (const PeerLost& error) {
        ++seen;
        const std::string cause = error.what();
        EXPECT_TRUE(cause.starts_with("step 2, ") || cause.starts_with("step 1, ")) << cause;
        EXPECT_NE(cause.find("rank 1 has no more power"), std::string::npos) << cause;
        EXPECT_EQ(error_of<PeerLost>([&] { reducer.begin_step(); }), cause);
        EXPECT_EQ(error_of<PeerLost>([&] { reducer.total_weight(); }), cause);
        return;
      }
    }
  });
  EXPECT_EQ(seen, 2);
}

TEST(NcclReducer, AReducerDroppedInAStepFailsTheOthersWithItsRank) {
  std::atomic<int> seen{0};
  run_ranks(2, [&](const Group& group) {
    const Compute compute(group);
    try {
      Reducer reducer(kSix, group, kTwoEach);
      reducer.begin_step({.weight = 1});
      for (int p = 5; p >= (group->rank() == 1 ? 4 : 0); --p) {
        write_gradient(*group, reducer, p, 1);
        reducer.mark_ready(p);
      }
      if (group->rank() == 1) return;
      reducer.finish_step();
      reducer.total_weight();
    } catch (const PeerLost& error) {
      ++seen;
      EXPECT_NE(std::string(error.what()).find("rank 1 left step 0 before finish_step"), std::string::npos)
          << error.what();
    }
  });
  EXPECT_EQ(seen, 1);
}

// What fails may be no call of the group's: the others would wait for the rest of the step.
TEST(NcclReducer, AStepThatTheDeviceFailsFailsTheOthersToo) {
  for (const bool gives_up : {false, true}) {
    std::latch ready(2);
    std::latch failed(2);
    run_ranks(2, [&](const Group& group) {
      const Compute compute(group);
      auto reducer = std::make_unique<Reducer>(kSix, group, kTwoEach);
      reducer->begin_step({.weight = 1});
      for (const int p : {5, 4}) {
        write_gradient(*group, *reducer, p, 1);
        reducer->mark_ready(p);
      }
      ready.arrive_and_wait();
      if (group->rank() == 1) {
        failed.arrive_and_wait();
        const std::string cause = error_of<PeerLost>([&] {
          for (const int p : {3, 2, 1, 0}) reducer->mark_unused(p);
          reducer->finish_step();
          reducer->total_weight();
        });
        expect_text(cause, {gives_up ? "failed in step 0: no more" : "rank 0 left step 0 before finish_step"});
        return;
      }
      fake_cuda::inject("cudaMemsetAsync=2");
      error_of<DeviceError>([&] { reducer->mark_unused(3); });
      fake_cuda::heal();
      if (gives_up) reducer->abandon_step("no more");
      reducer.reset();
      failed.arrive_and_wait();
    });
  }
}

// A kernel of NCCL's that never ends is a Timeout of whoever waits for it on the host. The limit is longer than a
// process may stand still on the way there.
TEST(NcclReducer, ACollectiveThatHangsIsATimeoutWithItsStep) {
  fake_nccl::inject("all_reduce=hang@6:rank0");
  run_ranks(2,
            [&](const Group& group) {
              const Compute compute(group);
              Reducer reducer(kSix, group, kTwoEach);
              const std::string cause = error_of<Timeout>([&] {
                for (int step = 0; step < 10; ++step) {
                  reducer.begin_step({.weight = 1});
                  backward(group, reducer, 1);
                  reducer.finish_step();
                  reducer.total_weight();
                }
              });
              expect_text(cause, {"step ", "timed out"});
            },
            {.timeout = std::chrono::seconds(4)});
  fake_nccl::heal();
}

TEST(NcclReducer, DifferentModelsAreAMismatchOnEveryRank) {
  run_ranks(2, [&](const Group& group) {
    auto specs = kSix;
    if (group->rank() == 1) specs[3].shape = {17};
    expect_text(error_of<Mismatch>([&] { Reducer(specs, group); }),
                {"parameter 3: rank 0 has 'd' float32 [16]; rank 1 has 'd' float32 [17]"});
  });
}

TEST(NcclReducer, BucketsAreLargerOnADevice) {
  run_ranks(1, [](const Group& group) {
    // 24 MB in twelve parameters: one bucket of the first cap, one of all others.
    std::vector<ParameterSpec> specs;
    for (int i = 0; i < 12; ++i) specs.push_back({"p" + std::to_string(i), DType::f32, {500'000}});
    EXPECT_EQ(Reducer(specs, group).plan().buckets.size(), 2u);
  });
}

}  // namespace
}  // namespace lockstep::testing
