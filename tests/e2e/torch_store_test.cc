// SPDX-License-Identifier: Apache-2.0
// `lockstep run --torch-store`: torch's protocol at MASTER_ADDR:MASTER_PORT, in torch's own bytes. tests/compat has the
// real torch.
#include <gtest/gtest.h>

#include <csignal>
#include <cstring>
#include <span>

#include "runtime/net/stream.h"
#include "runtime/net/tcp_socket.h"
#include "tests/e2e/launch.h"
#include "tests/support/leftovers.h"

namespace lockstep::e2e::torch_store_test {
namespace {

using namespace std::string_literals;
using testing::run;

// A client of today's torch: bytes out, bytes in.
class TorchClient {
 public:
  explicit TorchClient(int port) : fd_(net::tcp_connect({"127.0.0.1", static_cast<std::uint16_t>(port)}, deadline())) {
    send("\x00\xce\xf7\x85\x3c"s);  // VALIDATE
    send("\x0d\x01\x02\x03\x04"s);  // PING
    EXPECT_EQ(receive(4), "\x01\x02\x03\x04"s);
  }
  void set(const std::string& key, const std::string& value) { send("\x01"s + text(key) + text(value)); }
  // WAIT, then GET.
  std::string get(const std::string& key) {
    send("\x06"s + number(1) + text(key));
    EXPECT_EQ(receive(1), "\x00"s);
    send("\x03"s + text(key));
    std::uint64_t size = 0;
    const auto bytes = receive(8);
    std::memcpy(&size, bytes.data(), sizeof size);
    return receive(size);
  }

 private:
  static Deadline deadline() { return Deadline::after(testing::kPatience); }
  static std::string number(std::uint64_t value) {
    std::string bytes(sizeof value, '\0');
    std::memcpy(bytes.data(), &value, sizeof value);
    return bytes;
  }
  static std::string text(const std::string& bytes) { return number(bytes.size()) + bytes; }
  void send(const std::string& bytes) { net::send_all(fd_.get(), bytes, deadline()); }
  std::string receive(std::size_t size) {
    std::string bytes(size, '\0');
    net::recv_exact(fd_.get(), std::as_writable_bytes(std::span(bytes)), deadline());
    return bytes;
  }

  UniqueFd fd_;
};

int master_port_of_ranks() {
  for (const auto& process : testing::processes_with("LOCKSTEP_TEST_JOB", testing::job())) {
    const auto found = process.environment.find("MASTER_PORT");
    if (found != process.environment.end()) return std::stoi(found->second);
  }
  return 0;
}

TEST(TorchStore, ServesTorchsDialectBesideTheRunsOwnStore) {
  testing::Footprint footprint;
  Process launcher({.command = run_command({"-n", "2", "--torch-store"}, RANK_PROGRAM,
                                           {"init", "sum", "env:TORCHELASTIC_USE_AGENT_STORE",
                                            "env:TORCHELASTIC_RESTART_COUNT", "ready", "wait-signal:10", "sum"})});
  ASSERT_TRUE(launcher.await_output("ready", 2));
  footprint.look();
  const int port = master_port_of_ranks();
  TorchClient one(port);
  TorchClient other(port);
  one.set("/key", "value");
  EXPECT_EQ(one.get("/key"), "value");
  EXPECT_EQ(other.get("/key"), "value");
  launcher.send(SIGUSR1);
  const auto result = launcher.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(contains(result.out, "[rank 1] TORCHELASTIC_USE_AGENT_STORE=True\n"));
  EXPECT_TRUE(contains(result.out, "[rank 1] TORCHELASTIC_RESTART_COUNT=0\n"));
  EXPECT_TRUE(contains(result.err, "from lockstep run")) << "the ranks' own store outranks the agent's: " << result.err;
  EXPECT_TRUE(contains(result.err, "lockstep run: --torch-store: torch's protocol at 127.0.0.1:" +
                                       std::to_string(port) + ", without a secret"))
      << result.err;
  EXPECT_EQ(footprint.left_after(testing::leftover_deadline()), "");
}

TEST(TorchStore, WithoutItNobodyListensAtMasterPort) {
  Process launcher({.command = run_command({"-n", "2"}, RANK_PROGRAM, {"init", "ready", "wait-signal:10"})});
  ASSERT_TRUE(launcher.await_output("ready", 2));
  const auto port = static_cast<std::uint16_t>(master_port_of_ranks());
  EXPECT_THROW(net::tcp_connect_once({"127.0.0.1", port}, Deadline::after(testing::kPatience)), SystemError);
  launcher.send(SIGUSR1);
  const auto result = launcher.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_FALSE(contains(result.err, "torch")) << result.err;
}

TEST(TorchStore, TakesThePortItIsGivenOrSaysWhyNot) {
  const auto listener = net::tcp_listen({"127.0.0.1", 0});
  const auto port = std::to_string(net::local_address(listener.get()).port);
  const auto taken = run(plain(1, {"ready"}, {"--torch-store", "--master-port", port}));
  EXPECT_EQ(taken.exit_code, 1);
  EXPECT_TRUE(contains(taken.err, "Address already in use")) << taken.err;
  EXPECT_EQ(lines_of(taken.err).size(), 1u) << taken.err;
  const auto elsewhere = run(plain(1, {"ready"}, {"--torch-store", "--master-addr", "198.51.100.1"}));
  EXPECT_EQ(elsewhere.exit_code, 2);
  EXPECT_TRUE(contains(elsewhere.err, "--torch-store: listen at 198.51.100.1")) << elsewhere.err;
  EXPECT_FALSE(contains(taken.out + elsewhere.out, "ready")) << "no rank was started";
}

}  // namespace
}  // namespace lockstep::e2e::torch_store_test
