// SPDX-License-Identifier: Apache-2.0
// A job on three hosts and a stranger on a fourth, who has read along in an earlier one of the same secret: he comes to
// every port that the job opens, while the ranks connect and later.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/network_namespaces.h"
#include "tests/support/process.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr int kRanks = 3;
constexpr int kStranger = 3;  // his host

// What a port says before it has seen a proof, as patterns of hex: 32 bytes drawn by chance, and of the store its
// frames around them, and a refusal with the words "wrong secret".
const std::string kDraw = "[0-9a-f]{64}";
const std::string kLength32 = "2000000000000000";
const std::string kWrongSecret = "0201000000000000000c0000000000000077726f6e6720736563726574";

// All that the stranger got there.
void expect_no_data(const std::string& seen, const std::string& port, const std::string& greeting) {
  EXPECT_THAT(seen, AllOf(ContainsRegex(port + " replay: " + greeting + "\n"),
                          ContainsRegex(port + " wrong proof: " + greeting + "\n"), HasSubstr(port + " rubbish: \n"),
                          HasSubstr(port + " silence: \n")));
}

class StrangersOnTheWire : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = NetworkHosts::why_not();
    if (!reason.empty()) GTEST_SKIP() << reason;
    if (!has_program("python3")) GTEST_SKIP() << "python3 is not installed";
    hosts_ = std::make_unique<NetworkHosts>(kRanks + 1);
  }

  std::string file(const std::string& name) const { return (folder_ / name).string(); }

  Process stranger(const std::string& mode) const {
    return Process(
        {.command = hosts_->command(kStranger, {"python3", STRANGER, mode, file("greetings")}), .name = "stranger"});
  }
  // The last rank looks for the store at `store`.
  std::vector<Process> job(const std::string& name, const std::string& store) const {
    std::vector<Process> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      const bool is_last = rank == kRanks - 1;
      ranks.emplace_back(ProcessOptions{
          .command = hosts_->command(rank, {TRAINING_PROGRAM, file(name), file(name + ".weights"), "100", "tcp"}),
          .environment = {{"RANK", std::to_string(rank)},
                          {"WORLD_SIZE", std::to_string(kRanks)},
                          {"LOCAL_RANK", "0"},
                          {"LOCAL_WORLD_SIZE", "1"},
                          {"MASTER_ADDR", is_last ? store : NetworkHosts::address(0)},
                          {"MASTER_PORT", "29400"},
                          {"LOCKSTEP_STORE_SECRET", std::string(64, 'a')},
                          {"LOCKSTEP_LIVENESS", "off"},  // a rank that is stopped is waited for
                          {"LOCKSTEP_TEST_SLOW_DATA", "5"}},
          .name = "rank " + std::to_string(rank)});
    }
    return ranks;
  }
  static std::vector<std::string> logs_of(std::vector<Process>& ranks) {
    std::vector<std::string> logs;
    for (Process& rank : ranks) {
      const Result result = rank.wait();
      EXPECT_EQ(result.exit_code, 0) << result.err;
      logs.push_back(result.err);
    }
    return logs;
  }
  std::string weights_of(const std::string& name) const {
    std::ifstream in(file(name + ".weights"), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  const TemporaryFolder folder_;
  std::unique_ptr<NetworkHosts> hosts_;
};

TEST_F(StrangersOnTheWire, GetNoDataAndAreNamedAndChangeNoBit) {
  auto undisturbed = job("undisturbed", NetworkHosts::address(0));
  logs_of(undisturbed);
  ASSERT_FALSE(weights_of("undisturbed").empty());
  {
    const Process reader = stranger("record");
    ASSERT_TRUE(reader.await_output("listening"));
    auto earlier = job("earlier", NetworkHosts::address(kStranger));
    logs_of(earlier);
    ASSERT_TRUE(std::filesystem::exists(file("greetings"))) << "he has heard no greeting between ranks";
  }

  const Process first = stranger("start");
  ASSERT_TRUE(first.await_output("listening"));
  auto ranks = job("disturbed", NetworkHosts::address(kStranger));
  ASSERT_TRUE(ranks[0].await_output("at 10"));
  ranks[2].send(SIGSTOP);  // the job does not end while he comes again
  const Result later = stranger("later").wait();
  ranks[2].send(SIGCONT);
  const auto logs = logs_of(ranks);
  EXPECT_EQ(weights_of("disturbed"), weights_of("undisturbed"));
  for (const std::string& seen : {first.out(), later.out}) {
    expect_no_data(seen, "store", "000100000000000000" + kLength32 + kDraw + kWrongSecret);
  }
  for (const std::string port : {"rank 0", "rank 1"}) expect_no_data(first.out(), port, kDraw);
  const std::string his = NetworkHosts::address(kStranger) + ":[0-9]+";
  for (const int rank : {0, 1}) {
    EXPECT_THAT(logs[static_cast<std::size_t>(rank)],
                AllOf(ContainsRegex("turned away " + his + ": it calls itself rank 2 and could not prove"),
                      ContainsRegex("turned away " + his + ": it sent another greeting")));
  }
  EXPECT_THAT(logs[0], AllOf(ContainsRegex("store server at .*: " + his + ": wrong secret from a client that calls"),
                             ContainsRegex("store server at .*: closed " + his + ": its first byte is 0x47")));
}

}  // namespace
}  // namespace lockstep::testing
