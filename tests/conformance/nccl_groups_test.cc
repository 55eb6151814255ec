// SPDX-License-Identifier: Apache-2.0
// Several groups over NCCL on one device, and beside groups that only callers move: in which order they launch, and
// that none holds up another. Ranks as threads, over the fakes, of which NCCL's reports each pair of crossed launches.
#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <functional>
#include <latch>
#include <random>
#include <thread>

#include "runtime/store/hash_store.h"
#include "tests/conformance/errors.h"
#include "tests/conformance/nccl_gpu.h"
#include "tests/support/groups.h"
#include "tests/support/wait_until.h"

namespace lockstep::testing::nccl_groups_test {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

class NcclGroups : public NcclTest {
 protected:
  void TearDown() override {
    ::unsetenv("LOCKSTEP_CHECK_COLLECTIVES");
    NcclTest::TearDown();
  }
  // Runs `body` on two ranks.
  void run(const std::function<void(int rank)>& body) {
    const auto caught = [&](int rank) {
      try {
        body(rank);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    };
    std::thread other(caught, 1);
    caught(0);
    other.join();
  }
  Group group(const std::string& name, int rank, const std::string& backend = "nccl") {
    return make_group(name, backend, {0, 1}, rank, store_);
  }

 private:
  const std::shared_ptr<store::Store> store_ = std::make_shared<store::HashStore>();
};

// A collective of a group's, in host or device memory.
class Reduction {
 public:
  Reduction(ProcessGroup& group, bool on_device) : group_(group), ones_(100, 1) {
    BufferView buffer{std::span(ones_)};
    if (on_device) {
      memory_ = device_runtime(DeviceKind::cuda).allocate(buffer.bytes(), group.stream());
      upload(group.stream(), memory_.get(), std::as_bytes(std::span(ones_)));
      buffer = BufferView(memory_.get(), 100, DType::f32, group.device());
    }
    work_ = group.all_reduce(buffer);
  }
  void check() {
    work_.wait();
    if (memory_) download(group_.stream(), std::as_writable_bytes(std::span(ones_)), memory_.get());
    EXPECT_EQ(ones_, std::vector<float>(100, 2));
  }

 private:
  ProcessGroup& group_;
  std::vector<float> ones_;
  std::shared_ptr<void> memory_;
  Work work_;
};

// The random choices are the same on both ranks; when they come to them is not.
TEST_F(NcclGroups, LaunchInTheProgramsOrder) {
  for (unsigned seed = 1; seed <= 4; ++seed) {
    const std::string name = std::to_string(seed);
    run([&](int rank) {
      std::mt19937 random(seed);
      std::vector<Group> groups = {group("first" + name, rank), group("second" + name, rank)};
      std::deque<Reduction> pending;
      for (int k = 0; k < 30; ++k) {
        if (k == 10) groups.push_back(group("late" + name, rank));
        pending.emplace_back(*groups[random() % groups.size()], random() % 2 == 0);
        if (random() % 4 != 0) continue;
        pending[random() % pending.size()].check();
      }
      for (Reduction& reduction : pending) reduction.check();
    });
  }
}

// What the program does in crossed orders is launched so: the fake's own check.
TEST_F(NcclGroups, CrossedOrdersAreSeen) {
  std::latch both(2);
  run([&](int rank) {
    const std::vector<Group> groups = {group("first", rank), group("second", rank)};
    for (const Group& one : groups) Reduction(*one, true).check();  // NCCL connects
    both.arrive_and_wait();
    Reduction one(*groups[rank == 0 ? 0 : 1], true);
    Reduction other(*groups[rank == 0 ? 1 : 0], true);
    one.check();
    other.check();
  });
  const auto seen = of_nccl_.take();
  ASSERT_EQ(seen.size(), 1U);
  expect_text(seen[0], {"crossed orders: device ", " has launch 2 of communicator ", ", device ", " has it behind"});
}

TEST_F(NcclGroups, AFailedOneHoldsUpNoOther) {
  ::setenv("LOCKSTEP_CHECK_COLLECTIVES", "1", 1);
  run([&](int rank) {
    const Group fails = group("fails", rank);
    const Group goes_on = group("goes on", rank);
    std::vector<float> x(4, 1);
    // What rank 0 alone starts is never launched, and what it starts behind that waits.
    Work alone;
    if (rank == 0) alone = fails->all_reduce(BufferView(std::span(x)));
    Reduction behind(*goes_on, true);
    if (rank == 0) {
      fake_nccl::inject("abort=wait");
      fails->abort("the test has seen enough");
    }
    behind.check();
    if (rank == 0) {
      fake_nccl::heal();
      expect_text(error_of<PeerLost>([&] { alone.wait(); }), {"the test has seen enough"});
    }
  });
}

TEST_F(NcclGroups, OneThatOpensOrEndsHoldsUpNoOther) {
  std::latch over(2);
  run([&](int rank) {
    const Group goes_on = group("goes on", rank);
    Group ends = group("ends", rank);
    // Rank 1 comes later than the others' collectives.
    std::jthread opener([&, rank] {
      if (rank == 1) over.wait();
      group("opens", rank)->barrier().wait();
    });
    std::jthread closer([&, rank] {
      if (rank == 1) over.wait();
      ends.reset();
    });
    for (int k = 0; k < 20; ++k) Reduction(*goes_on, k % 2 == 0).check();
    over.count_down();
  });
}

// Rank 1 comes to the collective over NCCL once that in shared memory is done, for which rank 0 has to do its part.
TEST_F(NcclGroups, AHostThatWaitsPushesTheOthers) {
  run([&](int rank) {
    const Group by_callers = group("shm", rank, "shm");
    const Group on_gpus = group("nccl", rank);
    for (int round = 0; round < 5; ++round) {
      std::vector<float> large(100000, 1);  // several windows of shared memory
      const Work in_shm = by_callers->all_reduce(BufferView(std::span(large)));
      if (rank == 1) in_shm.wait();
      Reduction(*on_gpus, round % 2 == 0).check();
      in_shm.wait();
      EXPECT_EQ(large, std::vector<float>(large.size(), 2));
    }
  });
}

}  // namespace
}  // namespace lockstep::testing::nccl_groups_test
