// SPDX-License-Identifier: Apache-2.0
#include "runtime/net/connection.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>

#include "lockstep/base/error.h"
#include "runtime/net/stream.h"

namespace lockstep::net::connection_test {
namespace {

Deadline soon() { return Deadline::after(std::chrono::seconds(20)); }

class ConnectionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    connection_ = Connection(UniqueFd(fds[0]));
    peer_.reset(fds[1]);
  }
  void send(std::string_view bytes) const { send_all(peer_.get(), bytes, soon()); }

  Connection connection_;
  UniqueFd peer_;
};

TEST_F(ConnectionTest, KeepsWhatIsNotConsumed) {
  EXPECT_EQ(connection_.receive_now(), 0u) << "nothing has come";
  send("one\ntwo\nth");
  EXPECT_EQ(connection_.receive_now(), 10u);
  connection_.consume(4);
  EXPECT_EQ(connection_.input(), "two\nth");
  send("ree\n");
  connection_.receive(soon());
  EXPECT_EQ(connection_.input(), "two\nthree\n");
  connection_.consume(10);
  EXPECT_EQ(connection_.input(), "");
  EXPECT_THROW(connection_.receive(Deadline::after(std::chrono::milliseconds(5))), Timeout);
}

TEST_F(ConnectionTest, TakesMessagesOfAnySize) {
  std::string wanted;
  for (int i = 0; i < 600'000; ++i) wanted += static_cast<char>('a' + i % 23);
  for (int turn = 0; turn < 2; ++turn) {  // the second begins without the buffer of the first
    std::string_view rest = wanted;
    while (connection_.input().size() < wanted.size()) {
      if (!rest.empty()) rest.remove_prefix(try_send(peer_.get(), rest).value());
      ASSERT_GT(connection_.receive_now(), 0u);
    }
    EXPECT_TRUE(connection_.input() == wanted);
    connection_.consume(wanted.size());
  }
}

TEST_F(ConnectionTest, SendsAsMuchAsThePeerTakes) {
  const std::string wanted(3'000'000, 'x');
  std::string output = wanted;
  ASSERT_TRUE(connection_.send_now(output));
  EXPECT_FALSE(output.empty()) << "the peer reads nothing yet";
  std::string taken;
  while (taken.size() < wanted.size()) {
    ASSERT_TRUE(connection_.send_now(output));
    std::string part(200'000, '\0');
    part.resize(recv_now(peer_.get(), std::as_writable_bytes(std::span(part))));
    taken += part;
  }
  EXPECT_TRUE(taken == wanted);
  EXPECT_TRUE(output.empty());
}

TEST_F(ConnectionTest, TheEndOfThePeerComesAfterItsBytes) {
  send("last");
  peer_.reset();
  EXPECT_EQ(connection_.receive_now(), 4u);
  EXPECT_EQ(connection_.receive_now(), std::nullopt);
  EXPECT_EQ(errno, 0) << "it closed the connection";
  EXPECT_EQ(connection_.input(), "last");
  EXPECT_THROW(connection_.receive(soon()), ConnectionClosed);
  std::string output = "x";
  EXPECT_FALSE(connection_.send_now(output));
  EXPECT_EQ(errno, EPIPE);
}

TEST_F(ConnectionTest, APeerMayEndItsDirectionAlone) {
  send("request");
  ASSERT_EQ(::shutdown(peer_.get(), SHUT_WR), 0);
  EXPECT_EQ(connection_.receive_now(), 7u);
  EXPECT_EQ(connection_.receive_now(), std::nullopt);
  std::string output = "answer";
  EXPECT_TRUE(connection_.send_now(output));
  std::string answer(6, '\0');
  recv_exact(peer_.get(), std::as_writable_bytes(std::span(answer)), soon());
  EXPECT_EQ(answer, "answer");
}

}  // namespace
}  // namespace lockstep::net::connection_test
