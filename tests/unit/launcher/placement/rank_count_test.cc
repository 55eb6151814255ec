// SPDX-License-Identifier: Apache-2.0
#include "launcher/placement/rank_count.h"

#include <gtest/gtest.h>

#include <climits>
#include <filesystem>
#include <fstream>

#include "lockstep/base/error.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::launcher::rank_count_test {
namespace {

using lockstep::testing::error_of;

TEST(VisibleGpus, FollowsCuda) {
  EXPECT_EQ(visible_gpus(4, std::nullopt), 4);
  EXPECT_EQ(visible_gpus(4, ""), 0);
  EXPECT_EQ(visible_gpus(4, "-1"), 0);
  EXPECT_EQ(visible_gpus(4, "0"), 1);
  EXPECT_EQ(visible_gpus(4, "3,1"), 2);
  EXPECT_EQ(visible_gpus(4, " 3 , 1 "), 2);
  EXPECT_EQ(visible_gpus(4, "0,-1,1"), 1) << "an invalid entry hides what follows";
  EXPECT_EQ(visible_gpus(4, "0,4,1"), 1);
  EXPECT_EQ(visible_gpus(4, "NoDevFiles"), 0);
  EXPECT_EQ(visible_gpus(4, "GPU-8932f937,GPU-1"), 2);
  EXPECT_EQ(visible_gpus(1, "MIG-a,MIG-b"), 2) << "parts of one GPU";
  EXPECT_EQ(visible_gpus(0, "0,1"), 0);
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

TEST_F(FindGpus, CountsTheDriversFiles) {
  add("proc/0000:01:00.0");
  add("proc/0000:02:00.0");
  EXPECT_EQ(find().count, 2);
  EXPECT_EQ(find().reason, "");
}

TEST_F(FindGpus, CountsDeviceNodesWhereProcShowsNone) {
  for (const auto* name : {"dev/nvidia0", "dev/nvidia1", "dev/nvidia12", "dev/nvidiactl", "dev/nvidia-uvm"}) add(name);
  EXPECT_EQ(find().count, 3);
}

TEST_F(FindGpus, SaysWhyThereIsNone) {
  EXPECT_EQ(find().count, 0);
  EXPECT_NE(find().reason.find("no NVIDIA driver"), std::string::npos);
  add("dev/nvidia0");
  Environment environment;
  environment.set("CUDA_VISIBLE_DEVICES", "");
  const auto hidden = find(environment);
  EXPECT_EQ(hidden.count, 0);
  EXPECT_NE(hidden.reason.find("CUDA_VISIBLE_DEVICES=''"), std::string::npos);
}

RunOptions with(const std::string& nproc, std::optional<int> ranks = std::nullopt) {
  RunOptions options;
  options.nproc_per_node = nproc;
  options.ranks = ranks;
  return options;
}

TEST(ChooseRanks, ObeysANumber) {
  EXPECT_EQ(choose_ranks(with("5"), {8, {}}, 2).ranks, 5);
  EXPECT_EQ(choose_ranks(with("5"), {8, {}}, 2).reason, "");
  EXPECT_EQ(choose_ranks(with("auto", 3), {8, {}}, 2).ranks, 3);
  EXPECT_EQ(choose_ranks(with("3", 3), {}, 2).ranks, 3);
}

TEST(ChooseRanks, AutoPrefersGpus) {
  EXPECT_EQ(choose_ranks(with("auto"), {8, {}}, 2).ranks, 8);
  EXPECT_EQ(choose_ranks(with("auto"), {0, "none"}, 2).ranks, 2);
  EXPECT_EQ(choose_ranks(with("cpu"), {8, {}}, 2).ranks, 2);
  EXPECT_EQ(choose_ranks(with("gpu"), {8, {}}, 2).ranks, 8);
  EXPECT_EQ(choose_ranks(with("auto"), {0, "none"}, 2).reason, "1 per core, 2 allowed");
}

TEST(ChooseRanks, RefusesWhatCanNotBe) {
  EXPECT_NE(error_of([&] { choose_ranks(with("gpu"), {0, "the reason"}, 2); }).find("the reason"), std::string::npos);
  EXPECT_THROW(choose_ranks(with("4", 2), {}, 2), InvalidArgument);
}

TEST(Crowd, IsOfMoreThreadsThanCoresAndSaysWhatToDo) {
  EXPECT_EQ(describe_crowd({.ranks = 2, .cores = 2}), "");
  EXPECT_EQ(describe_crowd({.ranks = 3, .cores = 8}), "") << "the ranks share the cores by themselves";
  EXPECT_EQ(describe_crowd({.ranks = 2, .threads = 4, .cores = 8}), "");
  EXPECT_EQ(
      describe_crowd({.ranks = 3, .cores = 2}),
      "3 ranks x 1 thread on 2 cores: the threads take turns, so steps take longer and no rank is named as slow while "
      "the job runs; -n 2 has a core for each");
  EXPECT_EQ(
      describe_crowd({.ranks = 2, .threads = 4, .cores = 6}),
      "2 ranks x 4 threads on 6 cores: the threads take turns, so steps take longer and no rank is named as slow while "
      "the job runs; OMP_NUM_THREADS=3 is enough");
  EXPECT_NE(describe_crowd({.ranks = 1024, .threads = INT_MAX, .cores = 96}), "");
}

TEST(Crowd, HasARemedyThatLeavesNoCrowd) {
  EXPECT_TRUE(describe_crowd({.ranks = 3, .threads = 3, .cores = 2})
                  .ends_with("; -n 2 with OMP_NUM_THREADS=1 has a core for each"));
  EXPECT_TRUE(
      describe_crowd({.ranks = 3, .cores = 2, .is_multi_host = true})
          .ends_with(": the threads take turns, so steps take longer, and ranks of this host may be named as slow; "
                     "--nproc-per-node 2 has a core for each"));
}

TEST(Crowd, OnGpusIsOfRanksAlone) {
  EXPECT_EQ(describe_crowd({.ranks = 8, .threads = 16, .cores = 64, .uses_gpus = true}), "");
  EXPECT_NE(describe_crowd({.ranks = 8, .cores = 4, .uses_gpus = true}), "");
}

}  // namespace
}  // namespace lockstep::launcher::rank_count_test
