// SPDX-License-Identifier: Apache-2.0
// A server of metrics and its clients, by the real kernel.
#include "launcher/live/metrics_server.h"

#include <gtest/gtest.h>

#include <array>
#include <csignal>
#include <string>

#include "lockstep/base/error.h"
#include "runtime/net/stream.h"
#include "runtime/net/tcp_socket.h"
#include "tests/support/error_of.h"
#include "tests/support/scarce_memory.h"
#include "tests/support/wait_until.h"

namespace lockstep::launcher::metrics_server_test {
namespace {

using lockstep::testing::kPatience;
using lockstep::testing::ScarceMemory;

class MetricsServerTest : public ::testing::Test {
 protected:
  // As the launcher's console has it.
  void SetUp() override { std::signal(SIGPIPE, SIG_IGN); }

  UniqueFd connect() const { return net::tcp_connect_once(server_.address(), Deadline::after(kPatience)); }
  static std::string rest_of(int fd) {
    std::string text;
    std::array<std::byte, 4096> buffer;
    try {
      for (;;) {
        const auto bytes = net::recv_some(fd, buffer, Deadline::after(kPatience));
        text.append(reinterpret_cast<const char*>(buffer.data()), bytes);
      }
    } catch (const net::ConnectionClosed&) {
    }
    return text;
  }

  MetricsServer server_{{"127.0.0.1", 0}, [] { return LiveReport{.facts = {.run_id = "run-1", .world_size = 4}}; }};
};

TEST_F(MetricsServerTest, AnswersARequestThatComesInPieces) {
  const UniqueFd fd = connect();
  for (const char* const piece : {"GET /met", "rics HTTP/1.1\r\nHost: here\r\n", "Accept: */*\r\n", "\r\n"}) {
    net::send_all(fd.get(), std::string(piece), Deadline::after(kPatience));
  }
  const std::string answer = rest_of(fd.get());
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n")) << answer;
  EXPECT_NE(answer.find("\nlockstep_world_size{run=\"run-1\"} 4\n"), std::string::npos) << answer;
}

TEST_F(MetricsServerTest, WhoSaysNothingOrTooMuchKeepsNobodyFromAnAnswer) {
  const UniqueFd silent = connect();
  const UniqueFd endless = connect();
  net::send_all(endless.get(), std::string(16 * 1024, 'x'), Deadline::after(kPatience));
  EXPECT_EQ(rest_of(endless.get()), "");
  const UniqueFd gone = connect();
  net::send_all(gone.get(), std::string("GET / HTTP/1.1\r\n"), Deadline::after(kPatience));
  const UniqueFd fd = connect();
  net::send_all(fd.get(), std::string("GET /favicon.ico HTTP/1.1\r\n\r\n"), Deadline::after(kPatience));
  EXPECT_TRUE(rest_of(fd.get()).starts_with("HTTP/1.1 404 "));
}

// Who scrapes must not end the launcher, and with it the job: whatever allocation of its thread fails, once or until
// that scrape is over, the next one is answered.
TEST_F(MetricsServerTest, NoMemoryIsTheEndOfOneScrapeAlone) {
  if (!ScarceMemory::kIsPossible) GTEST_SKIP() << ScarceMemory::kWhyNot;
  const auto scrape = [this] {
    const UniqueFd fd = connect();
    try {
      net::send_all(fd.get(), std::string("GET /metrics HTTP/1.1\r\n\r\n"), Deadline::after(kPatience));
    } catch (const net::ConnectionClosed&) {
    }
    return rest_of(fd.get());
  };
  for (const long failures : {1L, ScarceMemory::kAll}) {
    bool was_met = true;
    for (long spare = 0; was_met; ++spare) {
      {
        const ScarceMemory scarce(spare, failures);
        scrape();
        was_met = scarce.was_met();
      }
      ASSERT_TRUE(scrape().starts_with("HTTP/1.1 200 OK\r\n")) << "after allocation " << spare << ", of " << failures;
    }
  }
}

TEST_F(MetricsServerTest, APortThatIsTakenIsAnError) {
  EXPECT_THROW(MetricsServer(server_.address(), [] { return LiveReport{}; }), SystemError);
}

}  // namespace
}  // namespace lockstep::launcher::metrics_server_test
