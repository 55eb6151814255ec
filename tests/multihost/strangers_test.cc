// SPDX-License-Identifier: Apache-2.0
// A job on three hosts and a stranger on a fourth, who has read along what one of the ranks says: he comes to every
// port that the job opens, while its ranks connect, while they compute, and while they make a group within the job.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/unique_fd.h"
#include "runtime/store/secret.h"
#include "tests/support/leftovers.h"
#include "tests/support/network_namespaces.h"
#include "tests/support/process.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::strangers_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::SizeIs;

constexpr int kRanks = 3;     // each on a host of its own
constexpr int kReadHost = 1;  // whose packets the stranger reads
constexpr int kStranger = 3;  // his host
const std::string kStore = NetworkHosts::address(0) + ":29400";

// Ways of tests/multihost/stranger.py.
const std::set<std::string> kAtStore = {"silence", "http", "rubbish", "torch", "greeting", "wrong", "replay"};
const std::set<std::string> kAtRank = {"silence", "http", "rubbish", "greeting", "wrong", "replay"};

// When the other side ends a connection: at once, a second after a wrong proof to a store, ten seconds after the
// beginning of one on which he does not go on.
enum class End { at_once, delayed, in_time };

// What a port says before it has seen a proof, as patterns of hex: a nonce of 32 bytes; of the store with a frame
// around them, and to a wrong proof the words "wrong secret".
const std::string kNonce = "[0-9a-f]{64}";
const std::string kChallenge = "0001000000000000002000000000000000" + kNonce;
const std::string kWrongSecret = "0201000000000000000c0000000000000077726f6e6720736563726574";

// A port of the job, "10.77.0.10:29400", and the host that has it.
struct Port {
  int host = 0;
  std::string address;

  // A launcher's, which carries what its ranks say to the store; for who is on the same host alone.
  bool is_relay() const { return address.starts_with("127.0.0.1:"); }
  bool is_store() const { return address == kStore || is_relay(); }
  // The last rank stands before it connects, and lets everybody wait.
  bool answers() const { return is_store() || host != kRanks - 1; }
  const std::set<std::string>& ways() const { return is_store() ? kAtStore : kAtRank; }
  auto operator<=>(const Port&) const = default;
};
using Ports = std::set<Port>;

End end_of(const Port& port, const std::string& way) {
  if (way == "silence" || way == "greeting") return End::in_time;
  return port.is_store() && (way == "wrong" || way == "replay") ? End::delayed : End::at_once;
}

// What he may get there, a pattern. What he has read is what the rank of that host said, who does not come to itself. A
// rank that does not answer may still do so once it goes on.
std::string allowed(const Port& port, const std::string& way) {
  const bool is_understood = way == "greeting" || way == "wrong" || way == "replay";
  if (!is_understood || (way == "replay" && !port.is_store() && port.host == kReadHost)) return "";
  if (!port.is_store()) return port.answers() ? kNonce : "(" + kNonce + ")?";
  return way == "greeting" ? kChallenge : kChallenge + kWrongSecret;
}

// The lines of a rank about somebody who is one of `these`; -1 if it has turned away another one.
int named_in(const std::string& log, const std::set<std::string>& these) {
  const std::string told = " turned away " + NetworkHosts::address(kStranger) + ":";
  int count = 0;
  for (auto at = log.find(told); at != std::string::npos; at = log.find(told, at + 1)) {
    const auto begin = at + std::string(" turned away ").size();
    if (!these.contains(log.substr(begin, log.find(": ", begin) - begin))) return -1;
    ++count;
  }
  return count;
}

class Strangers : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = NetworkHosts::why_not();
    if (!reason.empty()) GTEST_SKIP() << reason;
    if (!has_program("python3")) GTEST_SKIP() << "python3 is not installed";
    hosts_ = std::make_unique<NetworkHosts>(kRanks + 1);
    for (const char* place : {"start", "quiet", "group"}) {
      ASSERT_EQ(::mkfifo(file(place).c_str(), 0600), 0) << place;
    }
  }

  std::string file(const std::string& name) const { return (folder_ / name).string(); }

  std::vector<Process> launch() const {
    std::vector<Process> launchers;
    const std::string secret = store::Secret::random().hex();
    for (int host = 0; host < kRanks; ++host) {
      launchers.emplace_back(ProcessOptions{
          .command = hosts_->command(host, {LOCKSTEP_PROGRAM, "run", "--nnodes", std::to_string(kRanks),
                                            "--nproc-per-node", "1", "--node-rank", std::to_string(host),
                                            "--rdzv-endpoint", kStore, "--", STRANGERS_RANK, folder_.string()}),
          .environment = {{"LOCKSTEP_STORE_SECRET", secret}},
          .name = "host " + std::to_string(host)});
    }
    return launchers;
  }

  // Returns once he reads.
  Process reader(const std::string& name) const {
    Process process(
        {.command = hosts_->command(kReadHost, {"python3", STRANGER, "record", file(name)}), .name = "reader"});
    EXPECT_TRUE(process.await_output("recording"));
    return process;
  }

  // Lets the last rank go on.
  void release(const std::string& place) const {
    const auto reader_is_there = [&] {
      return static_cast<bool>(UniqueFd(::open(file(place).c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC)));
    };
    ASSERT_TRUE(wait_until(reader_is_there)) << place;
  }

  // Every port at which a process of the job listens, as the kernel has them.
  Ports ports(const std::vector<Process>& launchers) {
    footprint_.look();
    Ports found;
    for (int host = 0; host < kRanks; ++host) {
      std::vector<pid_t> pids;
      for (const pid_t pid : footprint_.pids()) {
        if (network_of(pid) == network_of(launchers[static_cast<std::size_t>(host)].pid())) pids.push_back(pid);
      }
      for (const std::string& socket : listening_sockets(pids)) {
        if (!socket.starts_with("unix ")) found.insert({host, socket.substr(0, socket.find(' '))});
      }
    }
    return found;
  }
  static std::string network_of(pid_t pid) {
    return std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/ns/net").native();
  }

  // Comes to all of them with what is in `files`. Returns once he has what he gets everywhere, and each connection that
  // ends by `last` has ended.
  void visit(const Ports& ports, const std::string& files, End last) {
    std::map<int, std::vector<Port>> from;  // by his host
    for (const Port& port : ports) from[port.is_relay() ? port.host : kStranger].push_back(port);
    const auto first = strangers_.size();
    for (const auto& [host, some] : from) {
      std::vector<std::string> command = {"python3", STRANGER, "attack", files};
      for (const Port& port : some) command.push_back(port.address);
      strangers_.push_back({{.command = hosts_->command(host, std::move(command)), .name = "stranger"}, some});
    }
    for (auto i = first; i < strangers_.size(); ++i) {
      int came = 0;
      int ended = 0;
      int challenged = 0;
      for (const Port& port : strangers_[i].ports) {
        came += static_cast<int>(port.ways().size());
        if (!port.answers()) continue;
        for (const std::string& way : port.ways()) {
          ended += end_of(port, way) <= last ? 1 : 0;
          challenged += allowed(port, way).empty() ? 0 : 1;
        }
      }
      ASSERT_TRUE(strangers_[i].process.await_output("came ", came));
      ASSERT_TRUE(strangers_[i].process.await_output("ended ", ended));
      ASSERT_TRUE(strangers_[i].process.await_output("challenged ", challenged));
    }
  }

  struct Stranger {
    Stranger(ProcessOptions options, std::vector<Port> its) : process(std::move(options)), ports(std::move(its)) {}
    Process process;
    std::vector<Port> ports;
  };
  // One connection of his: what he got on it, and where it came from.
  struct Visit {
    Port port;
    std::string way, address, got;
  };
  std::vector<Visit> visits() {
    std::vector<Visit> all;
    for (Stranger& stranger : strangers_) {
      const Result result = stranger.process.wait();
      EXPECT_EQ(result.exit_code, 0) << result.err;
      std::istringstream lines(result.out);
      std::string what, port, way, address, got;
      for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        got.clear();
        words >> what >> port >> way >> address >> got;
        if (what != "ended") continue;
        const auto its = std::find_if(stranger.ports.begin(), stranger.ports.end(),
                                      [&](const Port& one) { return one.address == port; });
        all.push_back({*its, way, address, got});
      }
    }
    return all;
  }

  const TemporaryFolder folder_;
  std::unique_ptr<NetworkHosts> hosts_;
  Footprint footprint_{{"python3"}};
  std::vector<Stranger> strangers_;
};

TEST_F(Strangers, GetNoDataAndAreNamedAndChangeNoSum) {
  const Process first_reader = reader("start.heard");
  auto launchers = launch();
  const Process& last = launchers[kRanks - 1];

  ASSERT_TRUE(last.await_output("holds at start"));
  ASSERT_TRUE(first_reader.await_output("recorded"));
  const Ports at_start = ports(launchers);
  ASSERT_NO_FATAL_FAILURE(visit(at_start, file("start.heard"), End::at_once));
  ASSERT_NO_FATAL_FAILURE(release("start"));

  ASSERT_TRUE(launchers[0].await_output("running"));
  const Ports running = ports(launchers);
  ASSERT_NO_FATAL_FAILURE(visit(running, file("start.heard"), End::at_once));
  folder_.write("later", "");

  ASSERT_TRUE(last.await_output("holds at quiet"));
  const Process second_reader = reader("group.heard");
  ASSERT_NO_FATAL_FAILURE(release("quiet"));
  ASSERT_TRUE(last.await_output("holds at group"));
  ASSERT_TRUE(second_reader.await_output("recorded"));
  const Ports of_group = ports(launchers);
  ASSERT_NO_FATAL_FAILURE(visit(of_group, file("start.heard") + "," + file("group.heard"), End::delayed));
  ASSERT_NO_FATAL_FAILURE(release("group"));

  std::vector<std::string> logs;
  for (Process& launcher : launchers) {
    const Result result = launcher.wait();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("all sums are right, backend tcp"));
    logs.push_back(result.err);
  }
  // No other port was open than those that the ways of the stranger are made for.
  EXPECT_THAT(running, SizeIs(kRanks)) << "the store's, and a relay on each other host";
  for (const Ports& connecting : {at_start, of_group}) {
    EXPECT_THAT(connecting, SizeIs(running.size() + kRanks)) << "and one of each rank";
    EXPECT_TRUE(std::includes(connecting.begin(), connecting.end(), running.begin(), running.end()));
  }

  std::vector<std::set<std::string>> came(kRanks);  // to each rank, from where
  for (const auto& [port, way, address, got] : visits()) {
    SCOPED_TRACE(port.address + " " + way + " from " + address);
    EXPECT_THAT(got, MatchesRegex(allowed(port, way)));
    const auto host = static_cast<std::size_t>(port.host);
    if (!port.is_store()) {
      came[host].insert(address);
    } else if (end_of(port, way) <= End::delayed) {
      EXPECT_THAT(logs[host], ContainsRegex("store server at " + port.address + ": (closed )?" + address));
    }
  }
  // Each time that it connects, a rank names three, and says how many more there were.
  for (std::size_t host = 0; host < kRanks; ++host) {
    EXPECT_EQ(named_in(logs[host], came[host]), 2 * 3) << logs[host];
    EXPECT_THAT(logs[host], ContainsRegex("turned away 3 more\n(.*\n)*.*turned away 3 more\n"));
  }
  EXPECT_EQ(footprint_.left_after(leftover_deadline()), "");
}

}  // namespace
}  // namespace lockstep::testing::strangers_test
