// SPDX-License-Identifier: Apache-2.0
#include "launcher/placement/rank_count.h"

#include <gtest/gtest.h>

#include <climits>
#include <filesystem>
#include <optional>
#include <string>

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

}  // namespace
}  // namespace lockstep::launcher::rank_count_test
