// SPDX-License-Identifier: Apache-2.0
// From variables and arguments to a working group, ranks as threads.
#include "lockstep/comm/init/init_process_group.h"

#include <gtest/gtest.h>

#include <barrier>
#include <cstdlib>
#include <thread>
#include <vector>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/base/intra_op_threads.h"
#include "runtime/base/cpu.h"
#include "runtime/net/tcp_socket.h"
#include "tests/support/error_of.h"

namespace lockstep::init_process_group_test {
namespace {

using lockstep::testing::expect_text;
using namespace std::chrono_literals;

// This process's variables are the tests' own: whatever launcher runs them is not meant.
class InitProcessGroup : public ::testing::Test {
 protected:
  InitProcessGroup() {
    const Environment environment = Environment::of_process();
    for (const auto& [name, value] : environment.variables()) {
      for (const char* prefix : {"LOCKSTEP_", "OMPI_", "PMIX_", "PMI_", "SLURM_", "TORCHELASTIC_"}) {
        if (name.starts_with(prefix) && name != "LOCKSTEP_LOG_LEVEL") ::unsetenv(name.c_str());
      }
    }
    for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR",
                             "MASTER_PORT", "OMP_NUM_THREADS"}) {
      ::unsetenv(name);
    }
  }

  // Each rank as a thread, with a group of its own.
  template <typename OnRank>
  static void on_ranks(int size, const std::string& backend, OnRank on_rank) {
    const std::string url = "tcp://" + net::local_address(net::tcp_listen({"127.0.0.1", 0}).get()).to_string() +
                            "?world_size=" + std::to_string(size) + "&rank=";
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < size; ++rank) {
      ranks.emplace_back([&, rank] {
        on_rank(init_process_group({.backend = backend, .init_method = url + std::to_string(rank), .timeout = 30s}),
                rank);
      });
    }
    for (std::thread& rank : ranks) rank.join();
  }
  static void expect_sum(ProcessGroup& group) {
    float value = static_cast<float>(group.rank() + 1);
    group.all_reduce({&value, 1, DType::f32, group.device()}).wait();
    EXPECT_EQ(value, static_cast<float>(group.size() * (group.size() + 1) / 2));
  }
};

TEST_F(InitProcessGroup, AloneWithoutVariables) {
  const auto group = init_process_group();
  EXPECT_EQ(group->rank(), 0);
  EXPECT_EQ(group->size(), 1);
  EXPECT_EQ(group->backend(), "single");
  EXPECT_EQ(group->timeout(), 5min);
  EXPECT_EQ(intra_op_threads(), allowed_cores());
  expect_sum(*group);
}

TEST_F(InitProcessGroup, ThePytorchWayWithAWorldOfOne) {
  const auto group = init_process_group(
      {.init_method = "tcp://localhost:23456", .rank = 0, .world_size = 1, .timeout = 30s, .device = "cpu"});
  EXPECT_EQ(group->size(), 1);
  EXPECT_EQ(group->timeout(), 30s);
}

TEST_F(InitProcessGroup, FourRanksOverTcp) {
  on_ranks(4, "auto", [](const std::shared_ptr<ProcessGroup>& group, int rank) {
    EXPECT_EQ(group->rank(), rank);
    EXPECT_EQ(group->size(), 4);
    EXPECT_EQ(group->backend(), "shm");
    EXPECT_EQ(group->roster()[3].local_rank, 3);
    expect_sum(*group);
  });
  EXPECT_EQ(intra_op_threads(), std::max(1, allowed_cores() / 4));
}

TEST_F(InitProcessGroup, WhatIsWrongIsSaidBeforeAnybodyIsWaitedFor) {
  const auto refusal = [](const InitOptions& options) -> std::string {
    try {
      init_process_group(options);
      return "accepted";
    } catch (const Error& error) {
      return error.what();
    }
  };
  expect_text(refusal({.backend = "ucc"}), {"'ucc'", "single, shm"});
  expect_text(refusal({.device = "cuda:3"}), {"device 'cuda:3' was asked for: "});
  expect_text(refusal({.backend = "nccl", .init_method = "tcp://127.0.0.1:9?rank=1&world_size=2"}), {"'nccl'"});
  expect_text(refusal({.init_method = "tcp://nowhere"}), {"no port"});
  expect_text(refusal({.rank = 2, .world_size = 2}), {"rank=2"});
  expect_text(refusal({.rank = 1, .world_size = 2}), {"MASTER_ADDR and MASTER_PORT are not set"});
  ::setenv("RANK", "1", 1);
  expect_text(refusal({}), {"WORLD_SIZE is not"});
  ::setenv("WORLD_SIZE", "2", 1);
  expect_text(refusal({}), {"MASTER_ADDR and MASTER_PORT are not set"});
}

// What a group reads of the environment later is what it was at the start: another thread of the program may be in
// setenv() by then, which moves what readers look at.
TEST_F(InitProcessGroup, TheEnvironmentIsReadAtTheStartAlone) {
  std::barrier started(2);
  on_ranks(2, "tcp", [&](const std::shared_ptr<ProcessGroup>& group, int rank) {
    started.arrive_and_wait();
    if (rank == 0) {
      ::setenv("GLOO_SOCKET_IFNAME", "no-such-interface", 1);
      ::setenv("LOCKSTEP_PORT_RANGE", "no-range", 1);
    }
    started.arrive_and_wait();
    expect_sum(*group->new_group({0, 1}));
  });
  ::unsetenv("GLOO_SOCKET_IFNAME");
  ::unsetenv("LOCKSTEP_PORT_RANGE");
}

TEST_F(InitProcessGroup, OmpNumThreadsDecidesIfItIsANumber) {
  for (const auto& [value, wanted] : {std::pair{"3", 3}, {"banana", allowed_cores()}}) {
    set_intra_op_threads(value[0] == '3' ? 3 : allowed_cores() + 1);
    ::setenv("OMP_NUM_THREADS", value, 1);
    const auto group = init_process_group();
    EXPECT_EQ(intra_op_threads(), wanted) << value;
  }
}

}  // namespace
}  // namespace lockstep::init_process_group_test
