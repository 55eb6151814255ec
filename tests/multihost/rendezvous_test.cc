// SPDX-License-Identifier: Apache-2.0
// Ranks on three hosts find each other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/network_namespaces.h"
#include "tests/support/process.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::rendezvous_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kHosts = 3;

class Rendezvous : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = NetworkHosts::why_not();
    if (!reason.empty()) GTEST_SKIP() << reason;
    hosts_.emplace(kHosts);
  }

  Process start(int host, const Variables& variables, const std::vector<std::string>& arguments = {}) const {
    std::vector<std::string> words = {MEET_PROGRAM};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return Process(
        {.command = hosts_->command(host, words), .environment = variables, .name = "rank " + std::to_string(host)});
  }

  std::optional<NetworkHosts> hosts_;
};

TEST_F(Rendezvous, ByHandWithASecretAndTheThirdHostWithAnotherGetsNothing) {
  const auto with_secret = [](int rank, char digit) {
    return Variables{{"RANK", std::to_string(rank)},
                     {"WORLD_SIZE", "2"},
                     {"MASTER_ADDR", NetworkHosts::address(0)},
                     {"MASTER_PORT", "23456"},
                     {"LOCKSTEP_STORE_SECRET", std::string(64, digit)}};
  };
  Process zero = start(0, with_secret(0, 'a'));
  Process stranger = start(2, with_secret(1, 'b'));
  const Result refused = stranger.wait();
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_EQ(refused.out, "");
  EXPECT_THAT(refused.err, AllOf(HasSubstr("secret"), Not(HasSubstr("bbbb"))));
  const Result one = start(1, with_secret(1, 'a')).wait();
  EXPECT_THAT(one.out, AllOf(HasSubstr("secret"), HasSubstr("host0: rank 0; host1: rank 1"))) << one.err;
  const Result first = zero.wait();
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.err, HasSubstr(NetworkHosts::address(2))) << "the log names who came with the wrong one";
}

TEST_F(Rendezvous, ThroughAFileOfAllHostsAtTheInterfaceThatIsWanted) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "meeting";
  std::vector<Process> ranks;
  for (int host = kHosts - 1; host >= 0; --host) {
    ranks.push_back(start(host, {{"RANK", std::to_string(host)}, {"WORLD_SIZE", "3"}, {"GLOO_SOCKET_IFNAME", "eth0"}},
                          {"file://" + path.native()}));
  }
  for (Process& rank : ranks) {
    const Result result = rank.wait();
    EXPECT_THAT(result.out, AllOf(HasSubstr("store " + NetworkHosts::address(0)), HasSubstr("secret"),
                                  HasSubstr("hosts host0: rank 0; host1: rank 1; host2: rank 2\n")))
        << result.err;
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace lockstep::testing::rendezvous_test
