// SPDX-License-Identifier: Apache-2.0
// How a group fails where that is a matter of shared memory. Ranks as threads.
#include <gtest/gtest.h>

#include <fstream>
#include <latch>

#include "lockstep/base/error.h"
#include "runtime/base/host.h"
#include "runtime/base/resource_limit.h"
#include "runtime/comm/shm/process_group_shm.h"
#include "runtime/store/hash_store.h"
#include "tests/conformance/errors.h"
#include "tests/support/cause_of.h"
#include "tests/support/rank_threads.h"

namespace lockstep::testing::shm_failures_test {
namespace {

using namespace std::chrono_literals;
using Group = std::shared_ptr<ProcessGroup>;

TEST(Failures, AMessageThatHasBegunSaysSo) {
  std::latch begun(1);
  std::latch over(1);
  run_ranks(2, [&](const Group& group) {
    std::vector<float> x(100000);
    if (group->rank() == 1) {
      Work work = group->send(view(x), 0, 3);
      begun.count_down();
      over.wait();  // does not come back to move it
      return static_cast<void>(error_of<Timeout>([&] { work.wait(); }));
    }
    begun.wait();
    Work work = group->recv(view(x), 1, 3);
    const Cause cause = cause_of<Timeout>([&] { work.wait(Deadline::after(100ms)); });
    expect_cause(cause, {.kind = Cause::Kind::timeout, .rank = 1, .reporter = 0});
    EXPECT_EQ(golden(cause.text),
              "recv of 100000 x float32 from rank 1 with tag 3 on rank 0 (...) timed out, elapsed T s of 0.1 s; rank 1 "
              "(...) has started the other half, and 0 of 25 chunks are done; it must call its group again to move the "
              "rest; see why it is late, or raise the timeout");
    over.count_down();
  });
}

// Of ranks that are all in it, with memory that takes many rounds of the windows.
TEST(Failures, WhoHoldsUpAWindowIsNamed) {
  std::latch started(3);
  std::latch over(2);
  run_ranks(3, [&](const Group& group) {
    std::vector<float> x(3000000);
    Work work = group->all_reduce(view(x));
    started.arrive_and_wait();
    if (group->rank() == 2) {
      over.wait();
      return static_cast<void>(error_of<Timeout>([&] { work.wait(); }));
    }
    expect_failure<Timeout>(
        [&] { work.wait(Deadline::after(200ms)); },
        {.kind = Cause::Kind::timeout, .rank = 2, .sequence = 1, .text = "all have arrived; not finished: rank 2 ("});
    over.count_down();
  });
}

TEST(Failures, TooMuchMemoryFailsTheCallAndNotTheGroup) {
  // If nothing refused it in time, this would take all memory of the machine.
  ASSERT_LT(available_memory(), std::uint64_t{1} << 46);
  run_ranks(3, [](const Group& group) {
    expect_failure<BackendUnavailable>([&] { group->allocate(std::size_t{1} << 46); },
                                       {.kind = Cause::Kind::failed, .rank = 0});
    float one = 1;
    group->all_reduce(BufferView(std::span(&one, 1))).wait();
    EXPECT_EQ(one, 3);
    EXPECT_EQ(group->allocate(100).bytes, 100u);
  });
}

int mapped_arenas() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("lockstep-arena") != std::string::npos ? 1 : 0;
  return count;
}

TEST(Failures, DroppedArenasAreGoneBeforeTheNextIsMade) {
  run_ranks(3, [](const Group& group) {
    Arena dropped = group->allocate(1 << 20);
    const Arena kept = group->allocate(1 << 20);
    group->barrier().wait();
    EXPECT_EQ(mapped_arenas(), 2);
    group->barrier().wait();
    dropped = {};
    // Only what happens before it makes memory.
    error_of<BackendUnavailable>([&] { group->allocate(std::size_t{1} << 46); });
    EXPECT_EQ(mapped_arenas(), 1);
    group->barrier().wait();
  });
}

// Of ranks that do not come to the bootstrap, or have given it up.
TEST(Failures, WhoIsMissedAtTheBootstrapIsNamedAndWhoGivesItUpDoesNotKeepTheOthersWaiting) {
  GroupContext context;
  context.store = std::make_shared<store::HashStore>();
  context.timeout = 60s;
  for (int r = 0; r < 2; ++r) context.roster.push_back({r, r, 4711 + r, "here", boot_id()});
  context.identity.rank = 1;
  const std::string timeout = error_of<Timeout>([&] { shm::backend().create(context, Deadline::after(100ms)); });
  expect_text(timeout, {"rank 0 (host here, pid 4711) has not started to set up shared memory"});
  context.identity.rank = 0;
  expect_text(error_of<BackendUnavailable>([&] { shm::backend().create(context, Deadline::after(60s)); }),
              {"rank 1 (host here, pid 4712)", timeout.c_str()});
  context.store = std::make_shared<store::HashStore>();
  context.roster.push_back({2, 2, 4713, "here", boot_id()});
  expect_text(error_of<Timeout>([&] { shm::backend().create(context, Deadline::after(200ms)); }),
              {"rank 1 (host here, pid 4712)", "rank 2 (host here, pid 4713)", "shared memory"});
}

TEST(Failures, RanksOnSeveralHostsAreRefused) {
  GroupContext context;
  context.roster = {{0, 0, 1, "here", "boot-a"}, {1, 0, 2, "there", "boot-b"}};
  EXPECT_EQ(
      shm::backend().why_not(context),
      "backend 'shm' serves ranks of one host, but rank 0 (host here, pid 1) and rank 1 (host there, pid 2) are on "
      "different ones; run all ranks on one host");
}

}  // namespace
}  // namespace lockstep::testing::shm_failures_test
