// SPDX-License-Identifier: Apache-2.0
// The hosts themselves: that they are what the tests of this folder take them for.
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <set>

#include "tests/support/leftovers.h"
#include "tests/support/network_namespaces.h"
#include "tests/support/process.h"

namespace lockstep::testing::hosts_test {
namespace {

std::vector<pid_t> children_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/task/" + std::to_string(pid) + "/children");
  std::vector<pid_t> children;
  for (pid_t child = 0; file >> child;) children.push_back(child);
  return children;
}

class Hosts : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = NetworkHosts::why_not();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};

TEST_F(Hosts, HaveNamesBootIdsAndAddressesOfTheirOwn) {
  const NetworkHosts hosts(3);
  std::set<std::string> boot_ids = {run({"cat", "/proc/sys/kernel/random/boot_id"}).out};
  for (int host = 0; host < 3; ++host) {
    EXPECT_EQ(run(hosts.command(host, {"uname", "-n"})).out, NetworkHosts::name(host) + "\n");
    boot_ids.insert(run(hosts.command(host, {"cat", "/proc/sys/kernel/random/boot_id"})).out);
    const auto addresses = run(hosts.command(host, {"ip", "-4", "-oneline", "addr", "show", "dev", "eth0"})).out;
    EXPECT_NE(addresses.find(NetworkHosts::address(host) + "/24"), std::string::npos) << addresses;
    EXPECT_NE(addresses.find(NetworkHosts::second_address(host) + "/24"), std::string::npos) << addresses;
  }
  EXPECT_EQ(boot_ids.size(), 4u);
}

// Whoever connects is told "hello".
std::vector<std::string> greeter() {
  return {"python3", "-u", "-c",
          "import socket\n"
          "s = socket.create_server(('', 7777))\n"
          "print('listening')\n"
          "while True:\n"
          "    c, _ = s.accept()\n"
          "    c.sendall(b'hello')\n"
          "    c.close()\n"};
}

std::vector<std::string> visitor(const std::string& address) {
  return {"python3", "-c",
          "import socket\n"
          "try:\n"
          "    print(socket.create_connection(('" +
              address +
              "', 7777), 1).recv(5).decode())\n"
              "except OSError as error:\n"
              "    print('no answer')\n"};
}

TEST_F(Hosts, ReachEachOtherUntilACableIsOut) {
  if (!has_program("python3")) GTEST_SKIP() << "python3 is not installed";
  NetworkHosts hosts(3);
  Process server({.command = hosts.command(0, greeter())});
  ASSERT_TRUE(server.await_output("listening"));
  const auto visit = [&](int host) { return run(hosts.command(host, visitor(NetworkHosts::address(0)))).out; };
  // A visitor that stands still, or is not served in time, tries again.
  const auto is_answered = [&](int host) { return wait_until([&] { return visit(host) == "hello\n"; }); };
  EXPECT_TRUE(is_answered(1));
  EXPECT_TRUE(is_answered(2));
  EXPECT_EQ(run(visitor(NetworkHosts::address(0))).out, "no answer\n") << "the machine itself is none of them";
  hosts.cut(1);
  EXPECT_EQ(visit(1), "no answer\n");
  EXPECT_TRUE(is_answered(2));
  hosts.mend(1);
  EXPECT_TRUE(is_answered(1));
}

TEST_F(Hosts, OfTwoTestsAtOneTimeKnowNothingOfEachOther) {
  const NetworkHosts first(1);
  const NetworkHosts second(1);
  EXPECT_NE(run(first.command(0, {"readlink", "/proc/self/ns/net"})).out,
            run(second.command(0, {"readlink", "/proc/self/ns/net"})).out);
}

TEST_F(Hosts, AreGoneWithATestThatIsKilled) {
  Process test({.command = {STANDING_HOSTS}});
  ASSERT_TRUE(test.await_output("standing"));
  // It, its three anchors and the guest.
  std::set<pid_t> pids = {test.pid()};
  const auto grow = [&] {
    for (const pid_t parent : std::set<pid_t>(pids)) {
      for (const pid_t child : children_of(parent)) pids.insert(child);
    }
    return pids.size();
  };
  ASSERT_TRUE(wait_until([&] { return grow() == 5; })) << pids.size();
  test.send(SIGKILL);
  test.wait();
  for (const pid_t pid : pids) {
    EXPECT_TRUE(wait_until([pid] {
      const char state = process_state(pid);
      return state == '?' || state == 'Z';
    })) << pid;
  }
}

}  // namespace
}  // namespace lockstep::testing::hosts_test
