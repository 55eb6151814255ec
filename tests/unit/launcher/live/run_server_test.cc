// SPDX-License-Identifier: Apache-2.0
// A server of a run, one of metrics, and their clients, by the real kernel.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/live/metrics_server.h"
#include "launcher/live/run_client.h"
#include "launcher/live/run_server.h"
#include "lockstep/base/error.h"
#include "runtime/net/connection.h"
#include "runtime/net/stream.h"
#include "runtime/net/tcp_socket.h"
#include "runtime/net/unix_socket.h"
#include "tests/support/child.h"
#include "tests/support/error_of.h"
#include "tests/support/limited_to.h"
#include "tests/support/scarce_memory.h"
#include "tests/support/wait_until.h"

namespace lockstep::launcher::run_server_test {
namespace {

using lockstep::testing::Child;
using lockstep::testing::kPatience;
using lockstep::testing::Line;
using lockstep::testing::ScarceMemory;

// This server's among all runs that are found.
std::optional<FoundRun> find(const RunServer& server) {
  for (const FoundRun& run : find_runs()) {
    if (run.socket == server.socket_name()) return run;
  }
  return std::nullopt;
}

// What comes until `wanted` has come or the other end closes.
std::string read_until(int fd, const std::string& wanted) {
  std::string text;
  std::array<std::byte, 4096> buffer;
  try {
    while (text.find(wanted) == std::string::npos) {
      const auto bytes = net::recv_some(fd, buffer, Deadline::after(kPatience));
      text.append(reinterpret_cast<const char*>(buffer.data()), bytes);
    }
  } catch (const net::ConnectionClosed&) {
    text += "(closed)";
  }
  return text;
}

class RunServerTest : public ::testing::Test {
 protected:
  // As the launcher's console has it.
  void SetUp() override { signal(SIGPIPE, SIG_IGN); }

  RecentLines lines_;
  std::atomic<int> stops_{0};
  std::optional<RunServer> server_{std::in_place, "run-of-test", [this] { ++stops_; }, lines_};
};

TEST_F(RunServerTest, IsFoundAndTellsOfTheRun) {
  server_->set_run({.run_id = "run-of-test", .start = 2}, [] {
    return std::vector<membership::MemberView>{{.position = {.step = 2}}, {.position = {.step = 5}}};
  });
  const auto run = find(*server_);
  ASSERT_TRUE(run);
  ASSERT_TRUE(run->facts);
  EXPECT_EQ(run->facts->start, 2);
  EXPECT_EQ(run->run_id, "run-of-test");
  EXPECT_EQ(run->pid, getpid());
  EXPECT_EQ(run->facts->step, 5);
  EXPECT_EQ(run->facts->stops, 0);
  server_->forget_members();
  EXPECT_EQ(find(*server_)->facts->step, -1);
}

TEST_F(RunServerTest, TellsOfTheRanksAsLongAsTheirStoreIsThere) {
  server_->set_run({.run_id = "run-of-test", .world_size = 1}, [] {
    return std::vector<membership::MemberView>{{.scope = "s", .info = {.rank = 0, .world_size = 1}}};
  });
  const auto run = find(*server_);
  ASSERT_TRUE(run);
  const auto ranks = [&run] {
    return read_live_report(answer_to(*run, {.what = RunRequest::What::top})).value_or(LiveReport{}).ranks;
  };
  ASSERT_TRUE(testing::wait_until([&] { return !ranks().empty(); }));
  EXPECT_EQ(ranks().front().state, "starting");
  server_->forget_members();
  EXPECT_TRUE(ranks().empty());
}

TEST_F(RunServerTest, CountsWhoAsksItToStop) {
  const auto run = find(*server_);
  ASSERT_TRUE(run);
  for (const int count : {1, 2}) {
    const UniqueFd fd = ask(*run, {.what = RunRequest::What::stop});
    std::string text = read_until(fd.get(), "never");
    ASSERT_TRUE(text.ends_with("(closed)")) << text;
    text.resize(text.size() - std::string_view("(closed)").size());
    const auto facts = decode_run_facts(text);
    ASSERT_TRUE(facts) << text;
    EXPECT_EQ(facts->stops, count);
    EXPECT_EQ(stops_, count);
  }
}

// Who asks must not end the launcher, and with it the job. Not of `top`: nlohmann's JSON allocates in its destructor.
TEST_F(RunServerTest, NoMemoryIsTheEndOfOneAnswerAlone) {
  if (!ScarceMemory::kIsPossible) GTEST_SKIP() << ScarceMemory::kWhyNot;
  server_->set_run({.run_id = "run-of-test", .world_size = 1}, [] {
    return std::vector<membership::MemberView>{{.scope = "s", .info = {.rank = 0, .world_size = 1}}};
  });
  lines_.put("a line\n");
  const auto run = find(*server_);
  ASSERT_TRUE(run);
  const auto ask_all = [&run] {
    std::string text;
    for (const auto what : {RunRequest::What::ps, RunRequest::What::logs}) {
      try {
        const UniqueFd fd = ask(*run, {.what = what, .lines = 1});
        text += read_until(fd.get(), "never");
      } catch (const Error&) {  // it closed the connection
      }
    }
    return text;
  };
  lockstep::testing::expect_service_after_each_shortage(ask_all,
                                                        [&] { return ask_all().find("a line") != std::string::npos; });
}

// What `lockstep inspect` asks for; the answer is another launcher's, and may come late or never.
TEST_F(RunServerTest, HasStacksTakenAndGivesEachToWhoHasAskedForThem) {
  std::atomic<int> asked{0};
  server_->set_run({.run_id = "run-of-test"}, {}, [&](int question, int rank, int pid) {
    EXPECT_EQ(pid, 1000 + rank);
    asked = std::max(asked.load(), question);
  });
  const auto run = find(*server_);
  ASSERT_TRUE(run);
  const auto ask_for = [&](int rank, int questions) {
    UniqueFd fd = ask(*run, {.what = RunRequest::What::stacks, .rank = rank, .pid = 1000 + rank});
    EXPECT_TRUE(testing::wait_until([&] { return asked == questions; }));
    return fd;
  };
  const UniqueFd first = ask_for(1, 1);
  const UniqueFd second = ask_for(2, 2);
  ask_for(3, 3).reset();
  server_->stacks_came(3, {"to nobody"});
  server_->stacks_came(2, {"#0 two", "#1 lines"});
  server_->stacks_came(2, {"twice"});
  const std::string header(kStacksHeader);
  EXPECT_EQ(read_until(second.get(), "never"), header + "#0 two\n#1 lines\n(closed)");
  server_->stacks_came(1, {});
  EXPECT_EQ(read_until(first.get(), "never"), header + "(closed)");
  net::Connection waiting(ask_for(4, 4));
  EXPECT_FALSE(read_answer(waiting, 100, Deadline::after(std::chrono::milliseconds(20))));
  server_.reset();
  EXPECT_EQ(read_until(waiting.fd(), "never"), "(closed)") << "a launcher that ends waits for nobody's stacks";
}

TEST_F(RunServerTest, ClosesAtOnceWhereItHasNobodyToAskForStacks) {
  const auto run = find(*server_);
  ASSERT_TRUE(run);
  EXPECT_EQ(answer_to(*run, {.what = RunRequest::What::stacks}), "");
}

TEST_F(RunServerTest, ShowsTheLastLinesAndFollowsToTheEnd) {
  lines_.put("one\ntwo\nthree\n");
  const auto run = find(*server_);
  ASSERT_TRUE(run);
  const std::string header(kLogsHeader);
  const UniqueFd last = ask(*run, {.what = RunRequest::What::logs, .lines = 2});
  EXPECT_EQ(read_until(last.get(), "never"), header + "two\nthree\n(closed)");
  const UniqueFd follower = ask(*run, {.what = RunRequest::What::logs, .lines = 1, .follow = true});
  EXPECT_EQ(read_until(follower.get(), "three\n"), header + "three\n");
  lines_.put("four\n");
  EXPECT_EQ(read_until(follower.get(), "four\n"), "four\n");
  lines_.put("last word\n");
  server_.reset();
  EXPECT_EQ(read_until(follower.get(), "never"), "last word\n(closed)");
}

TEST_F(RunServerTest, ASlowFollowerDelaysNobodyAndIsToldWhatItMissed) {
  const auto run = find(*server_);
  ASSERT_TRUE(run);
  const UniqueFd follower = ask(*run, {.what = RunRequest::What::logs, .lines = 0, .follow = true});
  ASSERT_EQ(read_until(follower.get(), "1\n"), std::string(kLogsHeader));
  // Far more than the socket and what is kept hold, while it reads nothing.
  const std::string line = std::string(999, 'x') + "\n";
  for (std::size_t i = 0; i < 20 * RecentLines::kMostBytes / 1000; ++i) lines_.put(line);
  lines_.put("the end\n");
  const std::string text = read_until(follower.get(), "the end\n");
  EXPECT_NE(text.find("lockstep logs: "), std::string::npos);
  EXPECT_NE(text.find(" bytes are missing here"), std::string::npos);
  EXPECT_LT(text.size(), 5 * RecentLines::kMostBytes);
  // Each line is whole, or the one that says how much is missing.
  EXPECT_EQ(text.find("xlockstep logs"), std::string::npos);
}

TEST_F(RunServerTest, NonsenseEndsTheConnection) {
  const auto run = find(*server_);
  ASSERT_TRUE(run);
  for (const std::string& text : {std::string("kill\n"), std::string(300, 'x')}) {
    const UniqueFd fd = net::unix_connect_abstract(run->socket, Deadline::after(kPatience));
    net::send_all(fd.get(), text, Deadline::after(kPatience));
    EXPECT_EQ(read_until(fd.get(), "never"), "(closed)");
  }
  EXPECT_TRUE(find(*server_)) << "and the server goes on";
}

TEST_F(RunServerTest, AnotherUserGetsNothing) {
  if (geteuid() != 0) GTEST_SKIP() << "only root may become another user";
  const std::string name = server_->socket_name();
  Child other([&name](const Line& line) {
    if (setuid(65533) != 0) return 2;
    std::array<std::byte, 64> buffer;
    int heard = 0;
    try {
      const UniqueFd fd = net::unix_connect_abstract(name, Deadline::after(kPatience));
      net::send_all(fd.get(), "stop\n", Deadline::after(kPatience));
      heard = static_cast<int>(net::recv_some(fd.get(), buffer, Deadline::after(kPatience)));
    } catch (const Error&) {  // closed before or after the words were sent
    }
    const bool told = line.tell(heard) && line.tell(static_cast<int>(find_runs().size()));
    return told ? 0 : 3;
  });
  EXPECT_EQ(other.told<int>(), 0) << "no answer";
  EXPECT_EQ(other.told<int>(), 0) << "no run of that user's";
  EXPECT_EQ(other.wait(), 0);
  EXPECT_EQ(stops_, 0);
  // Nor is a socket of another user's taken for a run of this one, whatever its name.
  const auto forged = run_socket_name(geteuid(), "forged", "run-forged");
  Child forger([&forged](const Line& line) {
    if (setuid(65533) != 0) return 2;
    const UniqueFd listener = net::unix_listen_abstract(forged);
    line.tell(1);
    return Child::stay();
  });
  ASSERT_EQ(forger.told<int>(), 1);
  const auto runs = find_runs();
  EXPECT_TRUE(std::none_of(runs.begin(), runs.end(), [&](const FoundRun& run) { return run.socket == forged; }));
}

TEST_F(RunServerTest, WhoDoesNotAnswerIsNamedAndTheOthersAreShown) {
  const auto silent = run_socket_name(geteuid(), "silent" + std::to_string(getpid()), "run-silent");
  Child child([&silent](const Line& line) {
    const UniqueFd listener = net::unix_listen_abstract(silent);  // and nobody accepts
    line.tell(1);
    return Child::stay();
  });
  ASSERT_EQ(child.told<int>(), 1);
  const auto runs = find_runs();
  const auto found = std::find_if(runs.begin(), runs.end(), [&](const FoundRun& run) { return run.socket == silent; });
  ASSERT_NE(found, runs.end());
  EXPECT_EQ(found->run_id, "run-silent");
  EXPECT_EQ(found->pid, child.pid());
  EXPECT_FALSE(found->facts);
  EXPECT_TRUE(std::any_of(runs.begin(), runs.end(), [&](const FoundRun& run) {
    return run.socket == server_->socket_name() && run.facts.has_value();
  }));
}

// The launcher says that nobody can reach the run, and the job goes on.
TEST(RunServer, WithoutAThreadIsAnErrorWithTheLimits) {
  constexpr uid_t kNobody = 65534;
  Child child([](const Line&) {
    if (geteuid() == 0) {
      EXPECT_EQ(setresuid(kNobody, kNobody, kNobody), 0);
    }
    const lockstep::testing::LimitedTo processes(RLIMIT_NPROC, 0);
    RecentLines lines;
    const std::string text = lockstep::testing::error_of<SystemError>([&] {
      RunServer(
          "run-of-test", [] {}, lines);
    });
    lockstep::testing::expect_text(text, {"starting a thread: ", "ulimit -u"});
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  EXPECT_EQ(child.wait(), 0);
}

TEST_F(RunServerTest, IsGoneWithItsRun) {
  const auto name = server_->socket_name();
  server_.reset();
  const auto runs = find_runs();
  EXPECT_TRUE(std::none_of(runs.begin(), runs.end(), [&](const FoundRun& run) { return run.socket == name; }));
}

// A server of metrics and its clients, by the real kernel.

class MetricsServerTest : public ::testing::Test {
 protected:
  // As the launcher's console has it.
  void SetUp() override { signal(SIGPIPE, SIG_IGN); }

  UniqueFd connect() const { return net::tcp_connect_once(server_.address(), Deadline::after(kPatience)); }
  // What the server says to this until it closes the connection.
  static std::string answer_to(const UniqueFd& fd, std::string_view request) {
    try {
      net::send_all(fd.get(), std::string(request), Deadline::after(kPatience));
    } catch (const net::ConnectionClosed&) {
    }
    return read_until(fd.get(), "never");
  }

  MetricsServer server_{{"127.0.0.1", 0}, [] { return LiveReport{.facts = {.run_id = "run-1", .world_size = 4}}; }};
};

TEST_F(MetricsServerTest, AnswersARequestThatComesInPieces) {
  const UniqueFd fd = connect();
  for (const char* const piece : {"GET /met", "rics HTTP/1.1\r\nHost: here\r\n", "Accept: */*\r\n"}) {
    net::send_all(fd.get(), std::string(piece), Deadline::after(kPatience));
  }
  const std::string answer = answer_to(fd, "\r\n");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n")) << answer;
  EXPECT_NE(answer.find("\nlockstep_world_size{run=\"run-1\"} 4\n"), std::string::npos) << answer;
}

TEST_F(MetricsServerTest, WhoSaysNothingOrTooMuchKeepsNobodyFromAnAnswer) {
  const UniqueFd silent = connect(), gone = connect();
  EXPECT_EQ(answer_to(connect(), std::string(16 * 1024, 'x')), "(closed)");
  net::send_all(gone.get(), std::string("GET / HTTP/1.1\r\n"), Deadline::after(kPatience));
  EXPECT_TRUE(answer_to(connect(), "GET /favicon.ico HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
}

// Who scrapes must not end the launcher, and with it the job: whatever allocation of its thread fails, once or until
// that scrape is over, the next one is answered.
TEST_F(MetricsServerTest, NoMemoryIsTheEndOfOneScrapeAlone) {
  if (!ScarceMemory::kIsPossible) GTEST_SKIP() << ScarceMemory::kWhyNot;
  const auto scrape = [this] { return answer_to(connect(), "GET /metrics HTTP/1.1\r\n\r\n"); };
  lockstep::testing::expect_service_after_each_shortage(scrape,
                                                        [&] { return scrape().starts_with("HTTP/1.1 200 OK\r\n"); });
}

TEST_F(MetricsServerTest, APortThatIsTakenIsAnError) {
  EXPECT_THROW(MetricsServer(server_.address(), [] { return LiveReport{}; }), SystemError);
}

}  // namespace
}  // namespace lockstep::launcher::run_server_test
