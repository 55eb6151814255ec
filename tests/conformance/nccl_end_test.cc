// SPDX-License-Identifier: Apache-2.0
// How a group over NCCL ends: what the program still computes, what comes late, what fails on the way. Ranks as
// threads, over the fakes.
#include <gtest/gtest.h>

#include <algorithm>
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
#include "tests/conformance/memory.h"
#include "tests/fakes/cudart/fake_cuda.h"
#include "tests/fakes/nccl/fake_nccl.h"
#include "tests/support/rank_threads.h"
#include "tests/support/wait_until.h"

namespace lockstep::testing::nccl_end_test {
namespace {

using namespace std::chrono_literals;
using Group = std::shared_ptr<ProcessGroup>;

// Puts a kernel into a stream that writes an arena.
void compute(
    StreamView stream, const Arena& arena, std::function<void()> run = [] {}) {
  fake_cuda::enqueue(static_cast<cudaStream_t>(stream.handle), "a kernel of the program", std::move(run), {},
                     {{arena.data, arena.bytes}});
}

class NcclEnd : public ::testing::Test {
 protected:
  void SetUp() override {
    ::unsetenv("LOCKSTEP_CHECK_COLLECTIVES");
    fake_nccl::take_calls();
  }
  void TearDown() override {
    set_log_sink({});
    fake_nccl::heal();
    fake_cuda::heal();
    ::unsetenv("LOCKSTEP_FAILURE_WATCHDOG");
    ::setenv("LOCKSTEP_CHECK_COLLECTIVES", "1", 1);
    EXPECT_EQ(of_nccl_.take(), std::vector<std::string>{});
    EXPECT_EQ(of_cuda_.take(), std::vector<std::string>{});
  }
  // How often the fake was called so since the test began.
  std::int64_t calls(const std::string& line) {
    for (std::string& call : fake_nccl::take_calls()) calls_.push_back(std::move(call));
    return std::count(calls_.begin(), calls_.end(), line);
  }

 private:
  fake_nccl::Violations of_nccl_;
  fake_cuda::Violations of_cuda_;
  std::vector<std::string> calls_;
};

// The fakes see each use that the host has not waited for, whenever the kernel runs.
void drop_arenas_that_are_in_use() {
  run_ranks(2, [](Group group) {
    const Stream stream(group->device());
    for (int round = 0; round < 3; ++round) compute(stream, group->allocate(4096));
    Arena kept = group->allocate(4096);
    compute(stream, group->allocate(4096));
    group.reset();
    compute(stream, kept);
  });
}

TEST_F(NcclEnd, ArenasGoBackBehindTheKernelsThatUseThem) {
  drop_arenas_that_are_in_use();
  EXPECT_EQ(calls("mem_free"), 10);
}

TEST_F(NcclEnd, SoDoThoseThatAreNotNccls) {
  fake_nccl::inject("mem_alloc=error");
  drop_arenas_that_are_in_use();
}

TEST_F(NcclEnd, AKernelThatTakesLongIsNoReasonToEndTheProcess) {
  ::setenv("LOCKSTEP_FAILURE_WATCHDOG", "1", 1);
  run_ranks(2, [](Group group) {
    const Stream stream(group->device());
    compute(stream, group->allocate(4096), [] { std::this_thread::sleep_for(1300ms); });
    group.reset();
  });
  EXPECT_EQ(calls("rank 0: destroy"), 1);
  EXPECT_EQ(calls("rank 0: abort"), 0);
}

TEST_F(NcclEnd, ADestroyThatIsLateIsOnlySaid) {
  ::setenv("LOCKSTEP_FAILURE_WATCHDOG", "1", 1);
  fake_nccl::inject("destroy=wait:rank1");
  std::atomic<bool> said{false};
  set_log_sink([&](LogLevel level, std::string_view text) {
    const bool is_it = text.find("ncclCommDestroy of rank 1 (host ") != text.npos;
    if (is_it && level == LogLevel::warn && text.find("has not returned in 1 s; the call waits") != text.npos)
      said = true;
  });
  std::jthread healer([&] {
    wait_until([&] { return said.load(); });
    fake_nccl::heal();
  });
  run_ranks(2, [](const Group& group) { group->barrier().wait(); });
  healer.join();
  EXPECT_TRUE(said);
  EXPECT_EQ(calls("rank 1: abort"), 0);
}

// Rank 0's device is in the program's kernel when all have said goodbye, and rank 1 fails.
TEST_F(NcclEnd, AFailureOnTheWayIsAnAbortAndNothingElse) {
  fake_nccl::inject("finalize=error:rank1");
  std::atomic<bool> go{false};
  std::jthread watcher([&] {
    wait_until([&] { return calls("rank 0: abort") > 0; });
    go = true;
  });
  run_ranks(2, [&](Group group) {
    const Stream stream(group->device());
    const Arena arena = group->allocate(4096);
    if (group->rank() == 0) {
      compute(stream, arena, [&] {
        while (!go) std::this_thread::yield();
      });
    }
    group.reset();
  });
  watcher.join();
  for (const std::string rank : {"rank 0: ", "rank 1: "}) {
    EXPECT_EQ(calls(rank + "abort"), 1);
    EXPECT_EQ(calls(rank + "destroy"), 0);
  }
  EXPECT_EQ(calls("rank 0: deregister"), 0);
  EXPECT_EQ(calls("rank 0: finalize"), 0);
}

// The program is unwound because its GPU is broken. Its group is the first that asks the GPU anything.
TEST_F(NcclEnd, AGroupGoesInOrderWithABrokenDevice) {
  std::atomic<bool> heard{false};
  const auto body = [&](const Group& group) {
    if (group->rank() == 1) {
      const auto fails = [&] {
        group->progress();
        return false;
      };
      expect_failure<PeerLost>([&] { wait_until(fails); }, {.kind = Cause::Kind::failed, .reporter = 0});
      heard = true;
      return;
    }
    const Stream stream(group->device());
    group->set_stream(stream);
    const auto memory = device_runtime(DeviceKind::cuda).allocate(400, stream);
    fake_cuda::enqueue(static_cast<cudaStream_t>(stream.view().handle), "a kernel that breaks the device",
                       [&] {
                         while (!heard) std::this_thread::yield();
                       },
                       {}, {{memory.get(), 400}});
    // The other's device has nothing to do.
    group->all_reduce(BufferView(memory.get(), 50, DType::f32, group->device())).wait_on(stream);
    fake_cuda::inject("cudaEventQuery=700@1+");
    throw InvalidArgument("the program's own");
  };
  expect_text(error_of<InvalidArgument>([&] { run_ranks(2, body); }), {"the program's own"});
  EXPECT_TRUE(heard);
  EXPECT_EQ(calls("rank 0: abort"), 1);
}

// CUDA gives the error of a kernel to every later call, that which makes the device current among them.
TEST_F(NcclEnd, ABrokenDevicesCommunicatorIsAborted) {
  std::latch all_are_up(2);
  run_ranks(2, [&](const Group& group) {
    const Stream stream(group->device());
    const auto memory = device_runtime(DeviceKind::cuda).allocate(400, stream);
    all_are_up.arrive_and_wait();
    if (group->rank() == 0) {
      fake_cuda::inject("operation=700@1");
      fake_cuda::enqueue(static_cast<cudaStream_t>(stream.view().handle), "a kernel that breaks the device", [] {}, {},
                         {{memory.get(), 400}});
    }
    error_of<Error>([&] {
      for (;;) group->barrier().wait();
    });
  });
  EXPECT_EQ(calls("rank 0: abort"), 1);
  EXPECT_EQ(calls("rank 1: abort"), 1);
}

// The abort comes back behind the program's own kernels, and nothing is wrong with these.
TEST_F(NcclEnd, TheTimeOfWhatIsComputedIsNotTheAborts) {
  ::setenv("LOCKSTEP_FAILURE_WATCHDOG", "1", 1);
  std::atomic<bool> computed{false};
  run_ranks(1, [&](Group group) {
    const Stream stream(group->device());
    group->set_stream(stream);
    const auto memory = device_runtime(DeviceKind::cuda).allocate(400, stream);
    fake_cuda::enqueue(static_cast<cudaStream_t>(stream.view().handle), "a slow step of the program",
                       [&] {
                         wait_until([&] { return calls("rank 0: abort") > 0; });
                         std::this_thread::sleep_for(2300ms);  // what it computes
                         computed = true;
                       },
                       {}, {{memory.get(), 400}});
    const Work work = group->all_reduce(BufferView(memory.get(), 100, DType::f32, group->device()));
    work.wait_on(stream);
    group->abort("another rank died");
    EXPECT_EQ(error_of<PeerLost>([&] { work.wait(); }), "another rank died");
    group.reset();
    EXPECT_TRUE(computed);
  });
}

// As which the watchdog sees the program's kernels.
TEST_F(NcclEnd, ComputeAheadHasALimit) {
  DeviceRuntime& runtime = device_runtime(DeviceKind::cuda);
  const DeviceId device{DeviceKind::cuda, 0};
  const Stream stream(device);
  std::atomic<bool> go{false};
  const auto memory = runtime.allocate(400, stream);
  const auto ready_behind = [&](std::function<void()> run) {
    fake_cuda::enqueue(static_cast<cudaStream_t>(stream.view().handle), "a kernel", std::move(run), {},
                       {{memory.get(), 400}});
    auto event = runtime.create_event(device, false);
    runtime.record(event.get(), stream);
    return std::vector<std::shared_ptr<void>>{event};
  };
  const auto hangs = ready_behind([&] {
    while (!go) std::this_thread::yield();
  });
  nccl::ComputeAhead nothing(runtime, device, {}, {.kernels = 60s, .question = 60s});
  EXPECT_TRUE(nothing.ended());

  nccl::ComputeAhead limited(runtime, device, hangs, {.kernels = 200ms, .question = 60s});
  EXPECT_FALSE(limited.ended());
  EXPECT_TRUE(wait_until([&] { return limited.ended(); }));
  EXPECT_TRUE(limited.took_too_long());

  nccl::ComputeAhead healthy(runtime, device, hangs, {.kernels = 60s, .question = 60s});
  EXPECT_FALSE(healthy.ended());
  go = true;
  EXPECT_TRUE(wait_until([&] { return healthy.ended(); }));
  EXPECT_FALSE(healthy.took_too_long());

  fake_cuda::inject("cudaEventQuery=wait");
  nccl::ComputeAhead silent(runtime, device, hangs, {.kernels = 60s, .question = 200ms});
  EXPECT_TRUE(wait_until([&] { return silent.ended(); }));
  EXPECT_FALSE(silent.took_too_long());
}

// Nobody is left to wait for the collective, and no other rank to miss it.
TEST_F(NcclEnd, AKernelThatNeverEndsBeforeACollectiveIsATimeoutOfTheEnd) {
  std::atomic<bool> go{false};
  std::jthread watcher([&] {
    wait_until([&] { return calls("rank 0: abort") > 0; });
    go = true;
  });
  run_ranks(1,
            [&](Group group) {
              const Stream stream(group->device());
              group->set_stream(stream);
              const auto memory = device_runtime(DeviceKind::cuda).allocate(400, stream);
              fake_cuda::enqueue(static_cast<cudaStream_t>(stream.view().handle), "a kernel that never ends",
                                 [&] {
                                   while (!go) std::this_thread::yield();
                                 },
                                 {}, {{memory.get(), 400}});
              const Work work = group->all_reduce(BufferView(memory.get(), 100, DType::f32, group->device()));
              wait_until([&] { return work.end_mark() != nullptr; });  // whatever its deadline
              work.wait_on(stream);
              group.reset();
              expect_failure<Timeout>(
                  [&] { work.wait(); },
                  {.kind = Cause::Kind::timeout,
                   .rank = 0,
                   .text = "ends its group, and cuda:0 has not finished what the program queued there"});
            },
            {.timeout = 500ms});
  watcher.join();
  EXPECT_EQ(calls("rank 0: abort"), 1);
  EXPECT_EQ(calls("rank 0: destroy"), 0);
}

// A program some slow steps ahead, whose group fails: the abort comes back, and the device has still to compute.
TEST_F(NcclEnd, AnAbortedProcessMayComputeForLonger) {
  ::setenv("LOCKSTEP_FAILURE_WATCHDOG", "2", 1);
  fake_nccl::inject("abort=early");
  std::atomic<bool> said{false};
  set_log_sink([&](LogLevel level, std::string_view text) {
    if (level == LogLevel::warn && text.find("after the abort of rank 0 (host ") != text.npos) said = true;
  });
  run_ranks(1, [&](Group group) {
    const Stream stream(group->device());
    group->set_stream(stream);
    const auto memory = device_runtime(DeviceKind::cuda).allocate(400, stream);
    fake_cuda::enqueue(static_cast<cudaStream_t>(stream.view().handle), "a slow step of the program",
                       [&] {
                         while (!said) std::this_thread::yield();
                       },
                       {}, {{memory.get(), 400}});
    const Work work = group->all_reduce(BufferView(memory.get(), 100, DType::f32, group->device()));
    work.wait_on(stream);
    group->abort("another rank died");
    EXPECT_EQ(error_of<PeerLost>([&] { work.wait(); }), "another rank died");
    device_runtime(DeviceKind::cuda).synchronize(stream.view(), copy_deadline());
    group.reset();
  });
  EXPECT_TRUE(said);
  EXPECT_EQ(calls("rank 0: abort"), 1);
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
  ::setenv("LOCKSTEP_FAILURE_WATCHDOG", "1", 1);
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
