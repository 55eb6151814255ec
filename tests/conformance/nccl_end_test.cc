// SPDX-License-Identifier: Apache-2.0
// How a group over NCCL ends: what the program still computes, what comes late, what fails on the way. Ranks as
// threads, over the fakes.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <latch>
#include <thread>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/comm/nccl/communicator.h"
#include "runtime/comm/nccl/compute_ahead.h"
#include "runtime/comm/nccl/detachable_call.h"
#include "tests/conformance/errors.h"
#include "tests/conformance/nccl_gpu.h"
#include "tests/support/rank_threads.h"
#include "tests/support/wait_until.h"

namespace lockstep::testing::nccl_end_test {
namespace {

using namespace std::chrono_literals;
using Group = std::shared_ptr<ProcessGroup>;

// Puts a kernel into a stream that writes an arena.
void use(
    StreamView stream, const Arena& arena, std::function<void()> run = [] {}) {
  launch(stream, {arena.data, arena.bytes}, std::move(run));
}

class NcclEnd : public NcclTest {
 protected:
  void TearDown() override {
    set_log_sink({});
    ::unsetenv("LOCKSTEP_FAILURE_WATCHDOG");
    NcclTest::TearDown();
  }
  void watchdog_of(const char* seconds) { ::setenv("LOCKSTEP_FAILURE_WATCHDOG", seconds, 1); }
  // Until the fake has been called so.
  void wait_for(const std::string& line) {
    wait_until([&] { return calls(line) > 0; });
  }
  // From now on a warning with all of these is noted.
  void listen_for(std::vector<std::string> parts) {
    set_log_sink([this, parts = std::move(parts)](LogLevel level, std::string_view text) {
      const auto has = [&](const std::string& part) { return text.find(part) != text.npos; };
      if (level == LogLevel::warn && std::all_of(parts.begin(), parts.end(), has)) said_ = true;
    });
  }
  std::atomic<bool> said_{false};
};

// The fakes see each use that the host has not waited for, whenever the kernel runs.
TEST_F(NcclEnd, ArenasGoBackBehindTheKernelsThatUseThem) {
  for (const bool are_nccls : {true, false}) {
    if (!are_nccls) fake_nccl::inject("mem_alloc=error");
    run_ranks(2, [](Group group) {
      const Stream stream(group->device());
      for (int round = 0; round < 3; ++round) use(stream, group->allocate(4096));
      Arena kept = group->allocate(4096);
      use(stream, group->allocate(4096));
      group.reset();
      use(stream, kept);
    });
    EXPECT_EQ(calls("mem_free"), 10);
  }
}

TEST_F(NcclEnd, AKernelThatTakesLongIsNoReasonToEndTheProcess) {
  watchdog_of("1");
  run_ranks(2, [](Group group) {
    const Stream stream(group->device());
    use(stream, group->allocate(4096), [] { std::this_thread::sleep_for(1300ms); });
    group.reset();
  });
  expect_end(0, "destroy");
}

TEST_F(NcclEnd, ADestroyThatIsLateIsOnlySaid) {
  watchdog_of("1");
  fake_nccl::inject("destroy=wait:rank1");
  listen_for({"ncclCommDestroy of rank 1 (host ", "has not returned in 1 s; the call waits"});
  std::jthread healer([&] {
    wait_until([&] { return said_.load(); });
    fake_nccl::heal();
  });
  run_ranks(2, [](const Group& group) { group->barrier().wait(); });
  healer.join();
  EXPECT_TRUE(said_);
  EXPECT_EQ(calls("rank 1: abort"), 0);
}

// Rank 0's device is in the program's kernel when all have said goodbye, and rank 1 fails.
TEST_F(NcclEnd, AFailureOnTheWayIsAnAbortAndNothingElse) {
  fake_nccl::inject("finalize=error:rank1");
  Gate gate;
  std::jthread watcher([&] {
    wait_for("rank 0: abort");
    gate.open();
  });
  run_ranks(2, [&](Group group) {
    const Stream stream(group->device());
    const Arena arena = group->allocate(4096);
    if (group->rank() == 0) use(stream, arena, gate.wait());
    group.reset();
  });
  watcher.join();
  for (const int rank : {0, 1}) expect_end(rank, "abort");
  EXPECT_EQ(calls("rank 0: deregister"), 0);
  EXPECT_EQ(calls("rank 0: finalize"), 0);
}

// The program is unwound because its GPU is broken. Its group is the first that asks the GPU anything.
TEST_F(NcclEnd, AGroupGoesInOrderWithABrokenDevice) {
  Gate heard;
  const auto body = [&](const Group& group) {
    if (group->rank() == 1) {
      const auto fails = [&] {
        group->progress();
        return false;
      };
      expect_failure<PeerLost>([&] { wait_until(fails); }, {.kind = Cause::Kind::failed, .reporter = 0});
      return heard.open();
    }
    const Gpu gpu(*group);
    gpu.compute(heard.wait());
    // The other's device has nothing to do.
    group->all_reduce(gpu.first).wait_on(gpu.stream);
    fake_cuda::inject("cudaEventQuery=700@1+");
    throw InvalidArgument("the program's own");
  };
  expect_text(error_of<InvalidArgument>([&] { run_ranks(2, body); }), {"the program's own"});
  EXPECT_EQ(calls("rank 0: abort"), 1);
}

// CUDA gives the error of a kernel to every later call, that which makes the device current among them.
TEST_F(NcclEnd, ABrokenDevicesCommunicatorIsAborted) {
  std::latch all_are_up(2);
  run_ranks(2, [&](const Group& group) {
    const Gpu gpu(*group);
    all_are_up.arrive_and_wait();
    if (group->rank() == 0) {
      fake_cuda::inject("operation=700@1");
      gpu.compute();
    }
    error_of<Error>([&] {
      for (;;) group->barrier().wait();
    });
  });
  for (const int rank : {0, 1}) expect_end(rank, "abort");
}

// The abort comes back behind the program's own kernels, and nothing is wrong with these; or before them, where a
// program is some slow steps ahead.
TEST_F(NcclEnd, TheTimeOfWhatIsComputedIsNotTheAborts) {
  for (const bool comes_back_early : {false, true}) {
    SCOPED_TRACE(comes_back_early);
    forget_calls();
    watchdog_of(comes_back_early ? "2" : "1");
    if (comes_back_early) fake_nccl::inject("abort=early");
    listen_for({"after the abort of rank 0 (host "});
    std::atomic<bool> computed{false};
    run_ranks(1, [&](Group group) {
      const Gpu gpu(*group);
      gpu.compute([&] {
        if (comes_back_early) {
          while (!said_) std::this_thread::yield();
        } else {
          wait_for("rank 0: abort");
          std::this_thread::sleep_for(2300ms);  // what it computes
        }
        computed = true;
      });
      const Work work = group->all_reduce(gpu.first);
      work.wait_on(gpu.stream);
      group->abort("another rank died");
      EXPECT_EQ(error_of<PeerLost>([&] { work.wait(); }), "another rank died");
      if (comes_back_early) gpu.stream.synchronize(copy_deadline());
      group.reset();
      EXPECT_TRUE(computed);
    });
    EXPECT_EQ(said_, comes_back_early);
    EXPECT_EQ(calls("rank 0: abort"), 1);
  }
}

// As which the watchdog sees the program's kernels.
TEST_F(NcclEnd, ComputeAheadHasALimit) {
  DeviceRuntime& runtime = device_runtime(DeviceKind::cuda);
  const DeviceId device{DeviceKind::cuda, 0};
  const Stream stream(device);
  Gate gate;
  const auto memory = runtime.allocate(400, stream);
  launch(stream, {memory.get(), 400}, gate.wait());
  const auto event = runtime.create_event(device, false);
  runtime.record(event.get(), stream);
  const std::vector<std::shared_ptr<void>> hangs{event};
  nccl::ComputeAhead nothing(runtime, device, {}, {.kernels = 60s, .question = 60s});
  EXPECT_TRUE(nothing.ended());

  nccl::ComputeAhead limited(runtime, device, hangs, {.kernels = 200ms, .question = 60s});
  EXPECT_FALSE(limited.ended());
  EXPECT_TRUE(wait_until([&] { return limited.ended(); }));
  EXPECT_TRUE(limited.took_too_long());

  nccl::ComputeAhead healthy(runtime, device, hangs, {.kernels = 60s, .question = 60s});
  EXPECT_FALSE(healthy.ended());
  gate.open();
  EXPECT_TRUE(wait_until([&] { return healthy.ended(); }));
  EXPECT_FALSE(healthy.took_too_long());

  fake_cuda::inject("cudaEventQuery=wait");
  nccl::ComputeAhead silent(runtime, device, hangs, {.kernels = 60s, .question = 200ms});
  EXPECT_TRUE(wait_until([&] { return silent.ended(); }));
  EXPECT_FALSE(silent.took_too_long());
}

// Nobody is left to wait for the collective, and no other rank to miss it.
TEST_F(NcclEnd, AKernelThatNeverEndsBeforeACollectiveIsATimeoutOfTheEnd) {
  Gate gate;
  std::jthread watcher([&] {
    wait_for("rank 0: abort");
    gate.open();
  });
  run_ranks(1,
            [&](Group group) {
              const Gpu gpu(*group);
              gpu.compute(gate.wait());
              const Work work = group->all_reduce(gpu.first);
              wait_until([&] { return work.end_mark() != nullptr; });  // whatever its deadline
              work.wait_on(gpu.stream);
              group.reset();
              expect_failure<Timeout>(
                  [&] { work.wait(); },
                  {.kind = Cause::Kind::timeout,
                   .rank = 0,
                   .text = "ends its group, and cuda:0 has not finished what the program queued there"});
            },
            {.timeout = 500ms});
  watcher.join();
  expect_end(0, "abort");
}

TEST_F(NcclEnd, MemoryThatStaysRegisteredIsKept) {
  fake_nccl::inject("deregister=error@1:rank1");
  run_ranks(2, [&](const Group& group) {
    Arena first = group->allocate(4096);
    Arena second = group->allocate(4096);
    first = second = {};
    const auto next = [&] { group->allocate(64); };
    if (group->rank() == 0) {
      error_of<PeerLost>(next);
    } else {
      expect_text(error_of<nccl::CallFailed>(next), {"ncclCommDeregister: unhandled system error"});
      group->abort("the test has seen enough");
    }
  });
  EXPECT_EQ(calls("rank 1: deregister"), 2) << "one that fails is no reason to forget the others";
}

TEST_F(NcclEnd, AStartThatComesBackTooLateIsAborted) {
  watchdog_of("1");
  fake_nccl::inject("init=wait:rank1");
  error_of<Timeout>([] { run_ranks(2, [](const Group&) { FAIL(); }, {.start_timeout = 300ms}); });
  EXPECT_EQ(calls("rank 1: abort"), 0);
  fake_nccl::heal();
  EXPECT_TRUE(wait_until([&] { return calls("rank 1: abort") == 1; }));
}

TEST_F(NcclEnd, ACallOfTheOwnersThatDoesNotReturnIsATimeout) {
  fake_nccl::inject("register=wait:rank1");
  run_ranks(2,
            [](const Group& group) {
              const std::string text = error_of<Timeout>([&] { group->allocate(4096); });
              if (group->rank() == 1) fake_nccl::heal();
              EXPECT_EQ(error_of<Timeout>([&] { return group->barrier(); }), text) << "not sticky";
            },
            {.timeout = 500ms});
}

TEST_F(NcclEnd, WhatAHelperThrowsIsTheCallers) {
  nccl::DetachableCall call({DeviceKind::cuda, 0}, [] { throw InvalidArgument("thrown in there"); });
  ASSERT_TRUE(call.wait(copy_deadline()));
  ASSERT_NE(call.error(), nullptr);
  EXPECT_EQ(error_of<InvalidArgument>([&] { std::rethrow_exception(call.error()); }), "thrown in there");
}

}  // namespace
}  // namespace lockstep::testing::nccl_end_test
