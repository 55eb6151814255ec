// SPDX-License-Identifier: Apache-2.0
// What is of a device alone: the Reducer over NCCL, with fakes of the CUDA runtime and of NCCL, ranks as threads. The
// fake runtime ends the process at the first use of memory that nothing orders, in every test here.
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <latch>
#include <map>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/device/device_runtime.h"
#include "runtime/ddp/equality/divergence_check.h"
#include "tests/fakes/cudart/fake_cuda.h"
#include "tests/fakes/nccl/fake_nccl.h"
#include "tests/multirank/reducer/suite.h"
#include "tests/support/error_of.h"
#include "tests/support/wait_until.h"

namespace lockstep::testing::nccl_test {
namespace {

// A kernel of the program's that computes until it may end.
void compute_until(const std::atomic<bool>& may_end, StreamView stream, float* data, std::int64_t count) {
  launch<float>(stream, "a long computation", data, count, [&may_end](float*, std::int64_t) {
    while (!may_end) std::this_thread::yield();
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

// The host is held up by nothing, and the device takes no new memory, from the third step on.
void expect_no_waits(const ReducerOptions& options) {
  SCOPED_TRACE(options.comm_hook.name);
  constexpr int kRanks = 2;
  std::latch warm(kRanks), counted(kRanks), over(kRanks);
  std::int64_t waits = 0;
  DeviceCounters counters;
  run_ranks(kRanks, [&](const Group& group) {
    const Compute compute(group);
    DeviceRuntime& cuda = device_runtime(DeviceKind::cuda);
    Reducer reducer(kSix, group, options);
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

TEST(NcclReducer, AStepMakesTheHostWaitForNothing) {
  for (const CommHook& hook :
       {CommHook{}, plain_hook(), noop_hook(), bf16_compress_hook(), fp16_compress_hook({.sum = HalfSum::backend})}) {
    expect_no_waits({.buckets = kTwoEach.buckets, .track_unused = true, .comm_hook = hook});
  }
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
        if (p == 0) compute_until(go, group->stream(), reducer.gradient<float>(p), 16);
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

TEST(NcclReducer, AStreamMayGoOnceAnotherIsSet) {
  run_ranks(2, [](const Group& group) {
    std::unique_ptr<Stream> stream;
    const auto move_on = [&] {
      auto next = std::make_unique<Stream>(group->device());
      group->set_stream(*next);
      stream = std::move(next);
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
  });
}

TEST(NcclReducer, FollowsAStreamThatIsSetBetweenAStepAndTheUpdateOfItsShares) {
  run_ranks(2, [](const Group& group) {
    const Stream after(group->device());
    auto before = std::make_unique<Stream>(group->device());
    group->set_stream(*before);
    Reducer reducer(kSix, group, {.buckets = kTwoEach.buckets, .shard = lockstep::Shard::optimizer});
    reducer.begin_step({.weight = 1});
    backward(group, reducer, 2);
    reducer.finish_step();
    group->set_stream(after);
    before.reset();
    reducer.update_shards([](const ParameterShard&) {});
    EXPECT_EQ(first(group, reducer, 1), 4.0f);
    EXPECT_EQ(gradient_of(*group, reducer, 5).back(), 12.0f);
  });
}

// A survivor's snapshot must not have weights of shares that have not come.
TEST(NcclReducer, AStepIsNotOverBeforeTheWeightsOfItsSharesHaveCome) {
  std::latch both(2);
  std::atomic<bool> go = false;
  run_ranks(2, [&](const Group& group) {
    const Compute compute(group);
    Reducer reducer(kSix, group, {.buckets = kTwoEach.buckets, .shard = lockstep::Shard::optimizer});
    reducer.begin_step({.weight = 1});
    backward(group, reducer, 2);
    reducer.finish_step();
    reducer.total_weight();  // waits for the sums
    EXPECT_TRUE(reducer.is_step_over());
    reducer.update_shards([&](const ParameterShard& share) {
      compute_until(go, group->stream(), reducer.gradient<float>(share.parameter) + share.begin,
                    share.end - share.begin);
    });
    EXPECT_FALSE(reducer.is_step_over());
    both.arrive_and_wait();
    go = true;
    EXPECT_TRUE(wait_until([&] { return reducer.is_step_over(); }));
  });
}

// One step with each kind of wait in it.
void two_steps(int ranks, const ReducerOptions& options) {
  run_ranks(ranks, [&](const Group& group) {
    const Compute compute(group);
    Reducer reducer(kSix, group, options);
    reducer.plan_order(kBackward);
    // What comes before is reached: the steps alone wait for what they need.
    compute.stream.synchronize(copy_deadline());
    std::array<std::atomic<bool>, 2> go = {};
    for (std::atomic<bool>& may_end : go) {
      reducer.begin_step({.weight = 1});
      for (const int p : kBackward) {
        write_gradient(*group, reducer, p, 1);
        // Nothing has ended before all waits are in their streams, else they would not be needed.
        compute_until(may_end, group->stream(), reducer.gradient<float>(p), 1);
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

// Takes away one wait of a stream for an event after the other, of `wanted` in two steps. Returns those of which
// nothing notices that they are missing.
std::vector<std::int64_t> unnoticed_waits(int ranks, const ReducerOptions& options, std::int64_t wanted) {
  fake_cuda::Violations violations;
  const std::int64_t before = fake_cuda::calls("cudaStreamWaitEvent");
  two_steps(ranks, options);
  EXPECT_EQ(fake_cuda::calls("cudaStreamWaitEvent") - before, wanted);
  EXPECT_EQ(violations.take(), std::vector<std::string>{});
  std::vector<std::int64_t> unnoticed;
  for (std::int64_t k = 1; k <= wanted; ++k) {
    fake_cuda::inject("cudaStreamWaitEvent=skip@" + std::to_string(k));
    two_steps(ranks, options);
    fake_cuda::heal();
    const auto seen = violations.take();
    if (seen.empty()) {
      unnoticed.push_back(k);
    } else {
      expect_text(seen[0], {"in no order with"});
    }
  }
  return unnoticed;
}

// Of two ranks in two steps: before four buckets, and after them all. The first is the communication stream's for the
// gradients of the first bucket.
TEST(NcclReducer, EveryWaitOfAStepIsNeeded) {
  EXPECT_TRUE(unnoticed_waits(2, {.buckets = kTwoEach.buckets, .track_unused = true}, 2 * 2 * (4 + 1)).empty());
}

// A single bucket, so that no other one's wait orders it too, of one rank, whose waits come in one order. In each step:
// the announcement's; the side stream's for gradients, the communication stream's for what is sent, the side's for what
// has come, the communication's for the sum; the compute stream's for the result and for the announcement, the side's
// for the use of the result.
TEST(NcclReducer, EveryWaitOfAHooksExchangeIsNeeded) {
  // But the first announcement's, whose word nothing has read; and the compute stream's for announcements, for which
  // that for the result stands here, as it would not for a hook that sends nothing.
  EXPECT_EQ(unnoticed_waits(1, {.buckets = {.cap_bytes = 1 << 20}, .comm_hook = bf16_compress_hook()}, 2 * 8),
            (std::vector<std::int64_t>{1, 7, 15}));
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
        if (step == 0) compute_until(go, group->stream(), reducer.gradient<float>(5), 16);
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

// The first two steps know their weight, a later one that of two and three steps before.
TEST(NcclReducer, AHooksScaleIsOfEarlierStepsAndTheMeanOfItsOwn) {
  const std::vector<std::int64_t> weights{1, 3, 100, 1, 7, 0, 0, 50, 2, 2, 2};
  for (const int ranks : {1, 3}) {
    run_ranks(ranks, [&](const Group& group) {
      const Compute compute(group);
      std::int64_t scale = 0;
      const CommHook hook{"sees", [&scale](const GradBucket& bucket) {
                            scale = bucket.scale;
                            return plain_hook().run(bucket);
                          }};
      Reducer reducer(kSix, group, {.buckets = kTwoEach.buckets, .comm_hook = hook});
      reducer.plan_order(kBackward);
      for (std::size_t step = 0; step < weights.size(); ++step) {
        // All of it is rank 0's.
        const std::int64_t own = group->rank() == 0 ? weights[step] : 0;
        reducer.begin_step({.weight = own});
        backward(group, reducer, static_cast<double>(own));
        reducer.finish_step();
        std::int64_t known = step < 2 ? weights[step] : weights[step - 2];
        if (step > 2) known = std::max(known, weights[step - 3]);
        if (step == 2) known = weights[0];
        EXPECT_EQ(scale, std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(known, 1)))) << step;
        EXPECT_EQ(first(group, reducer, 1), weights[step] == 0 ? 0.0f : 2.0f) << step;
        EXPECT_EQ(reducer.total_weight(), weights[step]);
      }
    });
  }
}

TEST(NcclReducer, HalvesAreSummedByNcclInOneCallIfTheOptionSaysSo) {
  const auto calls_of = [](HalfSum sum) {
    fake_nccl::take_calls();
    run_ranks(2, [&](const Group& group) {
      const Compute compute(group);
      Reducer reducer({{"w", DType::f32, {96}}}, group, {.comm_hook = bf16_compress_hook({.sum = sum})});
      for (int step = 0; step < 3; ++step) {
        reducer.begin_step({.weight = 2});
        write_gradient(*group, reducer, 0, group->rank() + 1);
        reducer.mark_ready(0);
        reducer.finish_step();
        EXPECT_EQ(first(group, reducer, 0), 0.75f);
      }
    });
    std::map<std::string, int> calls;
    for (const std::string& call : fake_nccl::take_calls()) {
      if (call.find("bfloat16") != std::string::npos) ++calls[call.substr(2)];
    }
    return calls;
  };
  EXPECT_EQ(calls_of(HalfSum::backend), (std::map<std::string, int>{{"all_reduce 96 bfloat16 sum", 6}}));
  EXPECT_EQ(calls_of(HalfSum::in_float32), (std::map<std::string, int>{{"all_gather 64 bfloat16", 6},
                                                                       {"recv 64 bfloat16 from 0", 3},
                                                                       {"recv 64 bfloat16 from 1", 3},
                                                                       {"send 64 bfloat16 to 0", 3},
                                                                       {"send 64 bfloat16 to 1", 3}}));
}

// The device computes what comes before the exchange for longer than the failure waits.
TEST(NcclReducer, MemoryOfAHooksExchangeGoesBackAfterItThoughTheGroupHasFailed) {
  std::atomic<bool> go = false;
  std::latch sent(2), left(2);
  run_ranks(2, [&](const Group& group) {
    const Compute compute(group);
    {
      Reducer reducer(kSix, group, {.buckets = kTwoEach.buckets, .comm_hook = bf16_compress_hook()});
      for (int step = 0; step < 3; ++step) {  // from then on the host waits for no announcement
        reducer.begin_step({.weight = 1});
        backward(group, reducer, 1);
        reducer.finish_step();
      }
      reducer.begin_step({.weight = 1});
      compute_until(go, group->stream(), reducer.gradient<float>(5), 16);
      for (const int p : {5, 4}) reducer.mark_ready(p);
      sent.arrive_and_wait();
    }
    left.arrive_and_wait();
    go = true;
  });
}

TEST(NcclReducer, AHookThatGivesBackHostMemoryIsToldWhatIsWanted) {
  run_ranks(1, [](const Group& group) {
    const Compute compute(group);
    const auto own = std::make_shared<std::vector<float>>(16);
    const CommHook hook{"mine", [own](const GradBucket&) {
                          return HookedBucket{.finish = [own] { return BufferView(std::span(*own)); }};
                        }};
    Reducer reducer({{"w", DType::f32, {16}}}, group, {.comm_hook = hook});
    reducer.begin_step();
    reducer.mark_unused(0);
    expect_text(error_of<InvalidArgument>([&] { reducer.finish_step(); }),
                {"communication hook 'mine' (step 0, bucket 0): the hook gave back memory on cpu, but its bucket is on "
                 "cuda:0"});
  });
}

TEST(NcclReducer, DigestsOfFixedMicroBatchesAreRefused) {
  ::setenv("LOCKSTEP_STEP_DIGESTS", "digests", 1);
  run_ranks(1, [](const Group& group) {
    expect_text(error_of<InvalidArgument>(
                    [&] { Reducer(kSix, group, {.reproducible = {.micro_batches = 2, .global_batch = 2}}); }),
                {"LOCKSTEP_STEP_DIGESTS=digests is set with gradients on cuda:0"});
  });
  ::unsetenv("LOCKSTEP_STEP_DIGESTS");
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

TEST(NcclReducer, BucketsAreLargerOnADevice) {
  run_ranks(1, [](const Group& group) {
    // 24 MB in twelve parameters: one bucket of the first cap, one of all others.
    std::vector<ParameterSpec> specs;
    for (int i = 0; i < 12; ++i) specs.push_back({"p" + std::to_string(i), DType::f32, {500'000}});
    EXPECT_EQ(Reducer(specs, group).plan().buckets.size(), 2u);
  });
}

}  // namespace
}  // namespace lockstep::testing::nccl_test
