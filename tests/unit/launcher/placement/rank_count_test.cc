// SPDX-License-Identifier: Apache-2.0
// How many ranks a host gets, and which GPUs they come to see.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <climits>
#include <filesystem>
#include <optional>
#include <string>

#include "launcher/flags/flag_values.h"
#include "launcher/placement/contract.h"
#include "launcher/placement/gpu_choice.h"
#include "launcher/placement/rank_count.h"
#include "launcher/placement/seen_gpus.h"
#include "launcher/placement/shared_gpu.h"
#include "lockstep/base/error.h"
#include "tests/support/error_of.h"
#include "tests/support/messages.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::launcher::rank_count_test {
namespace {

using lockstep::testing::error_of;

TEST(VisibleGpus, FollowsCuda) {
  struct Case {
    int gpus;
    std::optional<std::string> variable;
    int visible;
  };
  for (const auto& [gpus, variable, visible] : {Case{4, {}, 4},
                                                {4, "", 0},
                                                {4, "-1", 0},
                                                {4, "0", 1},
                                                {4, "3,1", 2},
                                                {4, " 3 , 1 ", 2},
                                                {4, "0,-1,1", 1},  // an invalid entry hides what follows
                                                {4, "0,4,1", 1},
                                                {4, "NoDevFiles", 0},
                                                {4, "GPU-8932f937,GPU-1", 2},
                                                {1, "MIG-a,MIG-b", 2},  // parts of one GPU
                                                {0, "0,1", 0}}) {
    EXPECT_EQ(visible_gpus(gpus, variable), visible) << variable.value_or("unset");
  }
}

class FindGpus : public ::testing::Test {
 protected:
  FindGpus() {
    std::filesystem::create_directories(root_ / "proc");
    std::filesystem::create_directories(root_ / "dev");
  }
  void add(const std::string& name) const { root_.write(name, ""); }
  Gpus find(const Environment& environment = {}) const {
    return find_gpus((root_ / "proc").native(), (root_ / "dev").native(), environment);
  }

  const lockstep::testing::TemporaryFolder root_;
};

TEST_F(FindGpus, CountsTheDriversFilesOrDeviceNodesOrSaysWhyThereIsNone) {
  EXPECT_EQ(find().count, 0);
  EXPECT_NE(find().reason.find("no NVIDIA driver"), std::string::npos);
  for (const auto* name : {"dev/nvidia0", "dev/nvidia1", "dev/nvidia12", "dev/nvidiactl", "dev/nvidia-uvm"}) add(name);
  EXPECT_EQ(find().count, 3);
  add("proc/0000:01:00.0");
  add("proc/0000:02:00.0");
  EXPECT_EQ(find().count, 2);
  EXPECT_EQ(find().reason, "");
  Environment environment;
  environment.set("CUDA_VISIBLE_DEVICES", "");
  EXPECT_EQ(find(environment).count, 0);
  EXPECT_NE(find(environment).reason.find("CUDA_VISIBLE_DEVICES=''"), std::string::npos);
}

RunOptions with(const std::string& nproc, std::optional<int> ranks = std::nullopt) {
  RunOptions options;
  options.nproc_per_node = nproc;
  options.ranks = ranks;
  return options;
}

TEST(ChooseRanks, ObeysANumberAndElsePrefersGpus) {
  EXPECT_EQ(choose_ranks(with("5"), {8, {}}, 2).ranks, 5);
  EXPECT_EQ(choose_ranks(with("5"), {8, {}}, 2).reason, "");
  EXPECT_EQ(choose_ranks(with("auto", 3), {8, {}}, 2).ranks, 3);
  EXPECT_EQ(choose_ranks(with("3", 3), {}, 2).ranks, 3);
  EXPECT_EQ(choose_ranks(with("auto"), {8, {}}, 2).ranks, 8);
  EXPECT_EQ(choose_ranks(with("cpu"), {8, {}}, 2).ranks, 2);
  EXPECT_EQ(choose_ranks(with("gpu"), {8, {}}, 2).ranks, 8);
  EXPECT_EQ(choose_ranks(with("auto"), {0, "none"}, 2).ranks, 2);
  EXPECT_EQ(choose_ranks(with("auto"), {0, "none"}, 2).reason, "1 per core, 2 allowed");
  EXPECT_NE(error_of([&] { choose_ranks(with("gpu"), {0, "the reason"}, 2); }).find("the reason"), std::string::npos);
  EXPECT_THROW(choose_ranks(with("4", 2), {}, 2), InvalidArgument);
}

TEST(Crowd, IsOfMoreThreadsThanCoresAndSaysWhatLeavesNone) {
  for (const auto& fits : {CoreDemand{.ranks = 2, .cores = 2},
                           {.ranks = 3, .cores = 8},  // the ranks share the cores by themselves
                           {.ranks = 2, .threads = 4, .cores = 8},
                           {.ranks = 8, .threads = 16, .cores = 64, .uses_gpus = true}}) {
    EXPECT_EQ(describe_crowd(fits), "");
  }
  std::string page;
  for (const auto& crowd : {CoreDemand{.ranks = 3, .cores = 2},
                            {.ranks = 2, .threads = 4, .cores = 6},
                            {.ranks = 1024, .threads = INT_MAX, .cores = 96},
                            {.ranks = 3, .threads = 3, .cores = 2},
                            {.ranks = 3, .cores = 2, .is_multi_host = true},
                            {.ranks = 8, .cores = 4, .uses_gpus = true}}) {
    page += describe_crowd(crowd) + "\n";
  }
  lockstep::testing::expect_message("launcher", "crowds", page);
}

// --devices and --oversubscribe-gpu: what the ranks come to see.

using lockstep::testing::expect_message;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

const std::vector<SeenGpu> kFour = {
    {"GPU-aa11", "H200"}, {"GPU-aa22", "H200"}, {"GPU-bb33", "H200"}, {"GPU-cc44", "H200"}};

std::string chosen(const std::string& devices, const std::vector<SeenGpu>& seen = kFour,
                   const std::optional<std::string>& inherited = {}) {
  return visible_devices_of_ranks(parse_devices(devices).value(), seen, inherited);
}

TEST(Devices, AreIndicesOrUuids) {
  EXPECT_THAT(*parse_devices("0,3"), ElementsAre("0", "3"));
  EXPECT_THAT(*parse_devices(" 1 , GPU-5f,MIG-7"), ElementsAre("1", "GPU-5f", "MIG-7"));
  for (const auto* wrong : {"", ",", "0,", ",1", "-1", "0-3", "all", "cuda:0", "1.5", "GPU-", "MIG-", "0 1", "99999",
                            "0x1", "99999999999999999999"}) {
    EXPECT_FALSE(parse_devices(wrong)) << wrong;
  }
}

TEST(Devices, IndicesCountWhatIsVisible) {
  EXPECT_EQ(chosen("3,0"), "3,0");
  EXPECT_EQ(chosen("1,0", kFour, "4,5,6,7"), "5,4");
  EXPECT_EQ(chosen("1", kFour, "GPU-aa11, GPU-aa22,2,3"), "GPU-aa22");
}

TEST(Devices, UuidsMayBeCutShort) {
  EXPECT_EQ(chosen("GPU-cc44,GPU-b"), "GPU-cc44,GPU-bb33");
  EXPECT_EQ(chosen("GPU-cc,0"), "GPU-cc44,GPU-aa11") << "CUDA wants one form in all entries";
  EXPECT_EQ(chosen("MIG-1"), "MIG-1") << "a part of a GPU is not in the list";
  // The driver says GPU- of a part too, and knows it by MIG- only.
  const std::vector<SeenGpu> parts = {{"GPU-5f01", "H200 MIG 1g.18gb"}, {"GPU-5f02", "H200 MIG 1g.18gb"}};
  EXPECT_EQ(chosen("GPU-5f02,0", parts, "MIG-5f01,MIG-5f02"), "MIG-5f02,MIG-5f01");
}

TEST(Devices, WhatIsNotHereOrComesTwiceIsNamedAndMoreRanksThanGpusWantTheFlag) {
  std::string page;
  for (const char* const devices : {"0,4", "GPU-dd", "GPU-aa", "1,1", "1,GPU-aa22", "MIG-1,MIG-1"}) {
    page += error_of([&] { chosen(devices); }) + "\n";
  }
  page += error_of([] { chosen("2", {kFour[0]}, "7"); }) + "\n";
  // Where nobody could ask a driver the number counts.
  const std::vector<SeenGpu> two(2);
  EXPECT_EQ(chosen("1,0", two), "1,0");
  EXPECT_EQ(chosen("GPU-5f", two), "GPU-5f");
  page += error_of([&] { chosen("2", two); }) + "\n";
  const std::vector<std::string> devices = {"0", "3"};
  require_a_gpu_each(2, devices, false);
  require_a_gpu_each(1, devices, false);
  require_a_gpu_each(8, {}, false);
  require_a_gpu_each(4, devices, true);
  page += error_of([&] { require_a_gpu_each(3, devices, false); }) + "\n";
  page += error_of([&] { require_a_gpu_each(2, {"0"}, false); }) + "\n";
  expect_message("launcher", "refusals", page);
}

TEST(SharedGpu, EveryRankIsAHostOfItsOwnAndTheUsersVariablesWin) {
  Contract contract;
  contract.hosts = {{.name = "a", .ranks = 2}};
  contract.run_id = "run-7";
  contract.share_gpus = true;
  Environment inherited;
  inherited.set("NCCL_ALGO", "Tree");
  inherited.set("NCCL_NET_PLUGIN", "");     // set is set
  inherited.set("NCCL_HOSTID", "node-17");  // by which all ranks were one host
  inherited.set("LOCKSTEP_OVERSUBSCRIBE_GPU", "0");
  const auto first = rank_environment(inherited, contract, 0);
  const auto second = rank_environment(inherited, contract, 1);
  EXPECT_THAT(first, Contains("NCCL_HOSTID=run-7-rank0"));
  EXPECT_THAT(second, Contains("NCCL_HOSTID=run-7-rank1"));
  for (const auto* entry :
       {"LOCKSTEP_OVERSUBSCRIBE_GPU=1", "NCCL_NET=Socket", "NCCL_SOCKET_IFNAME==lo", "NCCL_RAS_ENABLE=0",
        "NCCL_PROTO=Simple", "NCCL_P2P_DISABLE=1", "NCCL_SHM_DISABLE=1", "NCCL_ALGO=Tree", "NCCL_NET_PLUGIN="}) {
    EXPECT_THAT(second, Contains(entry));
  }
  contract.share_gpus = false;
  EXPECT_THAT(rank_environment(inherited, contract, 0), Not(Contains("NCCL_NET=Socket")));
}

TEST(SharedGpu, AVariableThatWinsIsSaid) {
  Environment site({{"NCCL_NET", "IB"},
                    {"NCCL_ALGO", "Ring"},  // as wanted
                    {"NCCL_HOSTID", "node-17"},
                    {"LOCKSTEP_OVERSUBSCRIBE_GPU", "0"}});
  const auto said = variables_that_win(site);
  ASSERT_EQ(said.size(), 1u);
  expect_message("launcher", "it", said.front());
  EXPECT_TRUE(variables_that_win({}).empty());
}

TEST(Devices, BecomeTheRanksVariable) {
  Contract contract;
  Environment inherited;
  inherited.set("CUDA_VISIBLE_DEVICES", "4,5");
  EXPECT_THAT(rank_environment(inherited, contract, 0), Contains("CUDA_VISIBLE_DEVICES=4,5"));
  contract.visible_devices = "5";
  EXPECT_THAT(rank_environment(inherited, contract, 0), Contains("CUDA_VISIBLE_DEVICES=5"));
}

HelperResult said(const std::string& out) { return {.ending = ExitStatus{}, .out = out, .err = {}}; }

TEST(SeenGpus, AreReadFromTheProbe) {
  const auto two = read_gpus("/x/probe", said(R"({"devices": [{"name": "cpu"}, {"name": "cuda:0", "uuid": "GPU-1",
      "gpu": "H200"}, {"name": "cuda:1", "uuid": "GPU-2", "gpu": "H200"}]})"));
  ASSERT_EQ(two.gpus.size(), 2u);
  EXPECT_EQ(two.gpus[1].uuid, "GPU-2");
  EXPECT_EQ(two.reason, "");
  EXPECT_EQ(read_gpus("/x/probe", said(R"({"devices": [{"name": "cpu"}], "no_gpu": "no driver"})")).reason,
            "no driver");
}

TEST(SeenGpus, AProbeThatFailsIsAReason) {
  for (const auto& result : {said(""), said("[]"), said(R"({"devices": [{"name": 3}]})"), HelperResult{}}) {
    const std::string reason = read_gpus("/x/probe", result).reason;
    EXPECT_NE(reason.find(result.ending ? "can't be used" : "no answer within"), std::string::npos) << reason;
    EXPECT_NE(reason.find("/x/probe"), std::string::npos) << reason;
  }
}

}  // namespace
}  // namespace lockstep::launcher::rank_count_test
