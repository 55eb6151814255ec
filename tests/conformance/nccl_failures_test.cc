// SPDX-License-Identifier: Apache-2.0
// How a group over NCCL fails, and how it ends: what NCCL and the device do wrong is injected into the fakes. Ranks as
// threads.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <latch>
#include <limits>
#include <thread>

#include "lockstep/base/error.h"
#include "runtime/comm/nccl/api.h"
#include "runtime/comm/nccl/meeting.h"
#include "tests/conformance/errors.h"
#include "tests/conformance/nccl_gpu.h"
#include "tests/support/cause_of.h"
#include "tests/support/rank_threads.h"
#include "tests/support/wait_until.h"

namespace lockstep::testing::nccl_failures_test {
namespace {

using namespace std::chrono_literals;
using Group = std::shared_ptr<ProcessGroup>;

// What comes of it in the ordinary mode.
class Nccl : public NcclTest {
 protected:
  // All ranks reduce until it fails; the cause, which is the same on each. The one with the number `hanging` has all
  // ranks in it before anybody looks at the clock.
  template <typename Error>
  Cause cause_of_the_end(int ranks, int hanging = 0) {
    std::vector<Cause> causes(static_cast<std::size_t>(ranks));
    std::latch all_in_it(ranks);
    run_ranks(ranks, [&](const Group& group) {
      std::vector<float> x(100, 1);
      Cause& cause = causes[static_cast<std::size_t>(group->rank())];
      cause = cause_of<Error>([&] {
        for (int step = 1; step < 1000; ++step) {
          const Work work = group->all_reduce(view(x));
          if (step == hanging) {
            all_in_it.arrive_and_wait();
            work.wait(Deadline::after(300ms));
          }
          work.wait();
        }
      });
      EXPECT_EQ(cause_of<Error>([&] { return group->barrier(); }), cause) << "not sticky";
    });
    for (const Cause& cause : causes) EXPECT_EQ(encode(cause), encode(causes[0]));
    return causes[0];
  }
};

TEST_F(Nccl, ACommunicatorThatNeverComesUpIsATimeout) {
  fake_nccl::inject("init=hang:rank1");
  const std::string text =
      error_of<Timeout>([] { run_ranks(2, [](const Group&) { FAIL(); }, {.start_timeout = 300ms}); });
  expect_text(text, {"the communicator of 2 ranks has not finished on rank ", "of 0.3 s",
                     "all have arrived, and NCCL does not continue", "NCCL_SOCKET_IFNAME"});
}

TEST_F(Nccl, ACommunicatorThatFailsSaysWhoseAndWhy) {
  fake_nccl::inject("init=error:rank1");
  const std::string text = error_of<BackendUnavailable>([] { run_ranks(3, [](const Group&) { FAIL(); }); });
  expect_text(text, {"rank 1: nccl: rank 1 (host", "can't make its communicator (NCCL 2.", "fake_nccl.so",
                     "unhandled system error (the test wants init to fail)", nccl::missing_beside()});
  void* const management = ::dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
  EXPECT_EQ(text.find("NVIDIA_DRIVER_CAPABILITIES=compute,utility") == text.npos, management != nullptr);
}

TEST_F(Nccl, AnAsynchronousErrorReachesAllWithTheFirstCause) {
  fake_nccl::inject("all_reduce=remote@3:rank1");
  // It names nobody: another rank's process may have ended.
  const Cause cause = cause_of_the_end<PeerLost>(3);
  expect_cause(cause, {.kind = Cause::Kind::failed, .reporter = 1, .sequence = 3});
  EXPECT_EQ(cause.rank, -1);
  expect_text(golden(cause.text),
              {"rank 1 (...) can't continue: ncclCommGetAsyncError: remote process exited",
               "; rank 1 (...) was in all_reduce 3 (sum, 100 x float32); a rank it talks to may have "
               "died, or the network; NCCL_DEBUG=WARN says more"});
}

TEST_F(Nccl, AnErrorThatPassesIsNone) {
  fake_nccl::inject("all_reduce=flaky@3:rank0");
  run_ranks(2, [](const Group& group) {
    std::vector<float> x(100, 1);
    for (int step = 0; step < 20; ++step) group->all_reduce(view(x)).wait();
  });
}

TEST_F(Nccl, ACallThatFails) {
  fake_nccl::inject("all_reduce=error@2:rank0");
  expect_cause(cause_of_the_end<PeerLost>(2), {.kind = Cause::Kind::failed,
                                               .reporter = 0,
                                               .sequence = 2,
                                               .text = "ncclAllReduce: internal error (the test wants this call to"});
}

TEST_F(Nccl, AKernelThatNeverEndsIsATimeout) {
  fake_nccl::inject("all_reduce=hang@2:rank1");
  const Cause cause = cause_of_the_end<Timeout>(2, 2);
  expect_cause(cause, {.kind = Cause::Kind::timeout, .sequence = 2});
  EXPECT_EQ(golden(cause.text), "all_reduce 2 (sum, 100 x float32) on rank " + std::to_string(cause.reporter) +
                                    " (...) timed out, elapsed T s of 0.3 s; all have arrived, and the devices have "
                                    "not finished it; see why it is late, or raise the timeout");
  for (const int rank : {0, 1}) {
    expect_end(rank, "abort");
    EXPECT_EQ(calls("rank " + std::to_string(rank) + ": finalize"), 0);
  }
}

TEST_F(Nccl, NobodyHasToWaitForADeadlineToPass) {
  fake_nccl::inject("all_reduce=hang@2:rank1");
  run_ranks(2,
            [](const Group& group) {
              const Gpu gpu(*group);
              gpu.compute();
              for (int step = 0; step < 2; ++step) group->all_reduce(gpu.first).wait_on(gpu.stream);
              const auto fails = [&] {
                group->progress();
                return false;
              };
              expect_failure<Timeout>([&] { wait_until(fails); }, {.kind = Cause::Kind::timeout, .sequence = 2});
              // The kernel has left with the abort, and the program's stream with it.
              gpu.stream.synchronize(copy_deadline());
            },
            {.timeout = 1500ms});
}

// A kernel of the program's that takes long is no fault of the collective behind it.
TEST_F(Nccl, TheTimeOfWhatIsNotComputedYetDoesNotCount) {
  Gate computed;
  std::atomic<int> looks{0};
  run_ranks(2,
            [&](const Group& group) {
              const Gpu gpu(*group);
              gpu.compute(computed.wait());
              Work work = group->all_reduce(gpu.first);
              work.wait_on(gpu.stream);
              const Deadline longer_than_the_timeout = Deadline::after(1300ms);
              while (!longer_than_the_timeout.expired()) {
                group->progress();
                std::this_thread::yield();
              }
              if (++looks == 2) computed.open();
              // From here on it has the group's timeout.
              work.wait(Deadline::after(60s));
            },
            {.timeout = 1s});
}

TEST_F(Nccl, DifferentOperationsThatHangAreNamedByTheTimeout) {
  std::array<Cause, 2> causes;
  std::latch both(2);
  run_ranks(2, [&](const Group& group) {
    std::vector<float> x(10);
    const auto rank = static_cast<std::size_t>(group->rank());
    causes[rank] = cause_of<Mismatch>([&] {
      const Work work = rank == 0 ? group->broadcast(view(x), 0) : group->all_reduce(view(x));
      both.arrive_and_wait();
      work.wait(Deadline::after(300ms));
    });
  });
  expect_one_cause(causes, {.kind = Cause::Kind::mismatch, .sequence = 1});
  const auto seen = of_nccl_.take();
  ASSERT_FALSE(seen.empty());
  expect_text(seen[0], {"calls all_reduce 10 float32 sum", "calls broadcast 10 float32 root 0"});
}

TEST_F(Nccl, TheEndIsInOrder) {
  run_ranks(2, [](const Group& group) {
    Arena arena = group->allocate(4096);
    const BufferView buffer(arena.data, 1024, DType::f32, group->device());
    group->all_reduce(buffer).wait_on(group->stream());  // and nobody waits on the host
  });
  for (const std::string rank : {"rank 0: ", "rank 1: "}) {
    std::vector<std::ptrdiff_t> places;
    for (const char* call : {"init", "register", "deregister", "finalize", "destroy"}) {
      EXPECT_EQ(calls(rank + call), 1) << rank << call;
      places.push_back(place_of(rank + call));
    }
    EXPECT_TRUE(std::is_sorted(places.begin(), places.end()));
    EXPECT_EQ(calls(rank + "abort"), 0);
  }
}

TEST_F(Nccl, AnEndThatHangsIsAborted) {
  fake_nccl::inject("finalize=hang:rank1");
  run_ranks(2, [](const Group& group) { group->barrier().wait(); }, {.timeout = 2s});
  for (const int rank : {0, 1}) expect_end(rank, "abort");
}

TEST_F(Nccl, WithoutItsOwnMemoryTheDevicesWillDo) {
  fake_nccl::inject("mem_alloc=error");
  run_ranks(2, [](const Group& group) {
    Arena arena = group->allocate(4096);
    std::vector<float> ones(1024, 1);
    upload(group->stream(), arena.data, std::as_bytes(std::span(ones)));
    group->all_reduce(BufferView(arena.data, 1024, DType::f32, group->device())).wait_on(group->stream());
    download(group->stream(), std::as_writable_bytes(std::span(ones)), arena.data);
    EXPECT_EQ(std::count(ones.begin(), ones.end(), 2.0F), 1024);
  });
  EXPECT_EQ(calls("rank 0: register"), 0);
  EXPECT_EQ(calls("mem_free"), 0);
}

TEST_F(Nccl, IfOneRankCannotRegisterNobodyDoes) {
  fake_nccl::inject("register=error:rank1");
  run_ranks(2, [](const Group& group) {
    Arena arena = group->allocate(4096);
    group->all_reduce(BufferView(arena.data, 0, DType::f32, group->device())).wait();
  });
  EXPECT_LT(place_of("rank 0: register"), place_of("rank 0: deregister"));
  EXPECT_LT(place_of("rank 0: deregister"), place_of("rank 0: all_reduce"));
  EXPECT_EQ(calls("rank 1: deregister"), 0);
}

TEST_F(Nccl, MemoryThatAllHaveDroppedIsGivenBackAtTheNextAllocation) {
  run_ranks(2, [&](const Group& group) {
    Arena dropped_by_all = group->allocate(4096);
    Arena dropped_by_one = group->allocate(4096);
    dropped_by_all = {};
    if (group->rank() == 0) dropped_by_one = {};
    group->barrier().wait();
    Arena next = group->allocate(64);
    group->barrier().wait();
    if (group->rank() == 0) {
      EXPECT_EQ(calls("mem_free"), 2) << "of one arena on two ranks";
    }
    group->barrier().wait();
  });
}

TEST_F(Nccl, ADeviceThatRunsFullIsTheReasonOnEveryRank) {
  fake_nccl::inject("mem_alloc=error");
  run_ranks(2, [](const Group& group) {
    const Cause cause = cause_of<BackendUnavailable>([&] { group->allocate(std::size_t{1} << 40); });
    expect_cause(cause, {.kind = Cause::Kind::failed, .rank = group->rank()});
    expect_text(golden(cause.text), {"allocate (1099511627776 bytes per rank): rank 0 (...): ", "; rank 1 (...): ",
                                     "no room for 1099511627776 bytes on cuda:1"});
    std::vector<float> x(10, 1);
    group->all_reduce(view(x)).wait();
    EXPECT_EQ(x[0], 2);
  });
}

// Rank 0 would be one collective behind rank 1 from then on, and they would add up different things.
TEST_F(Nccl, ACollectiveThatADeviceCannotStartFailsTheGroup) {
  std::latch ready(2);
  std::latch refused(2);
  std::array<Cause, 2> causes;
  run_ranks(2, [&](const Group& group) {
    const Gpu gpu(*group);
    gpu.compute();
    ready.arrive_and_wait();
    if (group->rank() == 0) {
      fake_cuda::inject("cudaEventRecord=2");
      expect_text(error_of<DeviceError>([&] { return group->all_reduce(gpu.first); }), {"cudaEventRecord"});
      fake_cuda::heal();
    }
    refused.arrive_and_wait();
    causes[static_cast<std::size_t>(group->rank())] = cause_of<PeerLost>([&] { group->all_reduce(gpu.first).wait(); });
  });
  expect_one_cause(causes, {.kind = Cause::Kind::aborted, .rank = 0, .text = "cudaEventRecord"});
}

TEST_F(Nccl, WeightsWhoseSumDoesNotFitAreRefused) {
  run_ranks(2, [](const Group& group) {
    std::vector<float> x(10, 1);
    const std::int64_t weight = group->rank() == 0 ? std::numeric_limits<std::int64_t>::max() : 1;
    expect_failure<Mismatch>(
        [&] { group->all_reduce(view(x), {.weight = weight}).wait(); },
        {.kind = Cause::Kind::mismatch, .sequence = 1, .text = "the weights add up to more than 2^63 - 1"});
  });
}

TEST_F(Nccl, TheLibrary) {
  const auto refusal = [](std::vector<std::string> candidates) {
    return error_of<BackendUnavailable>([&] { nccl::load_api(candidates); });
  };
  expect_text(refusal({"/nowhere/libnccl.so.2"}), {"/nowhere/libnccl.so.2", "can't be loaded", "install libnccl2",
                                                   "LOCKSTEP_NCCL_LIB", "site-packages/nvidia/nccl/lib"});
  expect_text(refusal({"libm.so.6"}), {"libm.so.6 has no function ncclGetVersion", "install libnccl2"});
  for (const std::string version : {"21803", "22605"}) {
    fake_nccl::inject("version=" + version);
    expect_text(refusal({LOCKSTEP_FAKE_NCCL_FILE}),
                {"fake_nccl.so is NCCL " + nccl::version_text(std::stoi(version)) + ", and 2.27.3 or newer is needed",
                 "frees what a call of another thread still uses", "install libnccl2 2.27", "nvidia-nccl-cu12"});
  }
  fake_nccl::heal();
  const nccl::Api api = nccl::load_api(std::vector<std::string>{"/nowhere.so", LOCKSTEP_FAKE_NCCL_FILE});
  EXPECT_GE(api.version, nccl::kOldestVersion);
  EXPECT_EQ(nccl::version_text(22809), "2.28.9");

  using Variables = std::map<std::string, std::string, std::less<>>;
  const auto candidates = [](const Variables& variables) { return nccl::library_candidates(Environment(variables)); };
  EXPECT_EQ(candidates({{"LOCKSTEP_NCCL_LIB", "/x/y.so"}, {"CUDA_HOME", "/c"}}), std::vector<std::string>{"/x/y.so"});
  const auto found = candidates({{"CUDA_HOME", "/c"}});
  EXPECT_EQ(found[0], "libnccl.so.2");
  EXPECT_EQ(found[1], "/c/lib64/libnccl.so.2");
}

TEST_F(Nccl, TwoRanksOnOneGpuAndTwoVersionsAreRefused) {
  const rendezvous::Roster roster = {{0, 0, 10, "a", "x"}, {1, 1, 11, "a", "x"}, {2, 0, 12, "b", "y"}};
  using Ranks = std::vector<nccl::Equipment>;
  EXPECT_EQ(nccl::verdict_on(Ranks{{"u", 22809}, {"v", 22809}, {"w", 22809}}, roster, false), "");
  const Ranks twice = {{"u", 22809}, {"v", 22809}, {"v", 22809}};
  expect_text(nccl::verdict_on(twice, roster, false),
              {"rank 1 (host a, pid 11) and rank 2 (host b, pid 12) are both on v", "--oversubscribe-gpu"});
  EXPECT_EQ(nccl::verdict_on(twice, roster, true), "");
  expect_text(nccl::verdict_on(Ranks{{"u", 22809}, {"v", 22809}, {"w", 22907}}, roster, true),
              {"rank 0 (host a, pid 10) has NCCL 2.28.9 and rank 2 (host b, pid 12) has NCCL 2.29.7"});
}

TEST_F(Nccl, OptionsThatMakeNoSense) {
  for (const auto& [name, value] :
       std::vector<std::pair<const char*, const char*>>{{"LOCKSTEP_NCCL_MAX_CTAS", "0"},
                                                        {"LOCKSTEP_NCCL_MAX_CTAS", "many"},
                                                        {"LOCKSTEP_CHECK_COLLECTIVES", "yes"},
                                                        {"LOCKSTEP_FAILURE_WATCHDOG", "0"}}) {
    ::setenv(name, value, 1);
    const std::string text = error_of<InvalidArgument>([] { run_ranks(2, [](const Group&) { FAIL(); }); });
    ::unsetenv(name);
    EXPECT_NE(text.find(std::string(name) + "='" + value + "'"), std::string::npos) << text;
  }
}

TEST_F(Nccl, ABufferIsWhereItSays) {
  run_ranks(2, [](const Group& group) {
    std::vector<float> x(4);
    const std::string text = error_of<InvalidArgument>(
        [&] { return group->all_reduce(BufferView(x.data(), 4, DType::f32, group->device())); });
    expect_text(text, {"all_reduce on rank", "is said to be on cuda:", "its memory is the host's"});
    const DeviceId other{DeviceKind::cuda, 1 - group->device().index};
    const auto memory = device_runtime(DeviceKind::cuda).allocate(64, {other, nullptr});
    expect_text(error_of<InvalidArgument>(
                    [&] { return group->all_reduce(BufferView(memory.get(), 4, DType::f32, group->device())); }),
                {"its memory is on " + other.str()});
    error_of<InvalidArgument>([&] { group->set_stream({other, nullptr}); });
  });
}

}  // namespace
}  // namespace lockstep::testing::nccl_failures_test
