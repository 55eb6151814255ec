// SPDX-License-Identifier: Apache-2.0
// Two ends of a connection, each moved by hand, over a pair of sockets of this process.
#include "runtime/comm/tcp/connection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::tcp::connection_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using wire::Tag;

constexpr Tag kTag{Tag::Kind::segment, 7};
constexpr Tag kOther{Tag::Kind::message, 7};

std::vector<std::byte> bytes_of(std::size_t count, int seed) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i)
    bytes[i] = static_cast<std::byte>(i * 31 + i / 251 + static_cast<std::size_t>(seed));
  return bytes;
}

// What an end has been told, in order: "frame hello", "through 3".
class Heard final : public Connection::Listener {
 public:
  void on_frame(std::span<const std::byte> frame) override {
    said.push_back("frame " + std::string(reinterpret_cast<const char*>(frame.data()), frame.size()));
  }
  void on_through(wire::Transfer transfer) override { said.push_back("through " + std::to_string(transfer)); }

  std::vector<std::string> said;
};

struct End {
  Heard heard;
  std::unique_ptr<Connection> connection;

  void frame(std::string_view text) { connection->send_frame(std::as_bytes(std::span(text))); }
  void send(std::vector<std::byte>& data, wire::Transfer transfer, Tag tag = kTag) {
    connection->send({0, data.data(), data.size(), tag.kind == Tag::Kind::segment}, tag, transfer);
  }
  void receive(std::vector<std::byte>& data, wire::Transfer transfer, Tag tag = kTag) {
    connection->receive({0, data.data(), data.size(), tag.kind == Tag::Kind::segment}, tag, transfer);
  }
};

class ConnectionTest : public ::testing::Test {
 protected:
  ConnectionTest() { connect(); }
  void connect() {
    std::array<int, 2> fds{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds.data()) != 0) std::abort();
    a_.connection = std::make_unique<Connection>(UniqueFd(fds[0]), a_.heard);
    b_.connection = std::make_unique<Connection>(UniqueFd(fds[1]), b_.heard);
  }
  // Moves both until neither has anything more to say.
  void move() {
    do {
      for (End* const end : {&a_, &b_}) end->connection->write();
      for (End* const end : {&a_, &b_}) end->connection->read();
    } while (a_.connection->wants_to_write() || b_.connection->wants_to_write());
  }
  // What has been written to `end`, which does not get it.
  static std::string intercepted(const End& end) {
    std::string text(200000, '\0');
    text.resize(
        static_cast<std::size_t>(std::max<ssize_t>(::recv(end.connection->fd(), text.data(), text.size(), 0), 0)));
    return text;
  }
  // Bytes that come to `end` as if from its peer. Throws what it does about them.
  void say_to(End& end, std::string_view bytes) {
    const End& peer = &end == &a_ ? b_ : a_;
    ASSERT_EQ(::send(peer.connection->fd(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    end.connection->read();
  }
  // A transfer from a to b, of which a part has been sent: more than fits into the socket.
  void begin_large(std::vector<std::byte>& data, std::vector<std::byte>& got) {
    b_.receive(got, 1);
    a_.send(data, 2);
    b_.connection->write();
    a_.connection->read();
    a_.connection->write();
    ASSERT_TRUE(a_.connection->wants_to_write());
  }

  End a_;
  End b_;
};

TEST_F(ConnectionTest, ASmallSegmentDoesNotWaitForItsReceive) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{5000}, Connection::kMostEager}) {
    auto data = bytes_of(bytes, 1);
    std::vector<std::byte> got(bytes);
    a_.send(data, 1);
    move();
    EXPECT_THAT(std::exchange(a_.heard.said, {}), ElementsAre("through 1")) << bytes;
    EXPECT_THAT(b_.heard.said, IsEmpty()) << bytes;
    b_.receive(got, 2);
    EXPECT_EQ(got, data);
    EXPECT_THAT(std::exchange(b_.heard.said, {}), ElementsAre("through 2")) << bytes;
  }
}

TEST_F(ConnectionTest, AReceiveMayComeInTheMiddleOfASmallSegment) {
  auto data = bytes_of(50000, 1), next = bytes_of(50000, 2);
  std::vector<std::byte> got(data.size()), got_next(next.size());
  a_.send(data, 1);
  a_.send(next, 2);
  a_.connection->write();
  const std::string stream = intercepted(b_);
  ASSERT_GT(stream.size(), 100000u);
  say_to(b_, stream.substr(0, 20000));
  b_.receive(got, 3);
  say_to(b_, stream.substr(20000, 40000));
  b_.receive(got_next, 4);
  say_to(b_, stream.substr(60000));
  EXPECT_EQ(got, data);
  EXPECT_EQ(got_next, next);
  EXPECT_THAT(b_.heard.said, ElementsAre("through 3", "through 4"));
}

TEST_F(ConnectionTest, SmallSegmentsThatNobodyTakesAreRefusedInTheEnd) {
  auto data = bytes_of(1, 1);
  for (std::size_t i = 0; i < Connection::kMostEarly; ++i) a_.send(data, i, {Tag::Kind::segment, i});
  move();
  a_.send(data, 99, {Tag::Kind::segment, 99});
  EXPECT_THROW(move(), wire::Broken);
}

TEST_F(ConnectionTest, WhatLiesAtTheSideGoesWithTheTransfers) {
  auto data = bytes_of(1000, 1);
  a_.send(data, 1);
  move();
  b_.connection->cancel_transfers();
  a_.send(data, 2);
  a_.frame("more");
  move();
  EXPECT_THAT(b_.heard.said, ElementsAre("frame more"));
}

TEST_F(ConnectionTest, TransfersOfManySizesArriveWhole) {
  std::vector<std::vector<std::byte>> data;
  std::vector<std::vector<std::byte>> got;
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{4079}, std::size_t{4080},
                                  std::size_t{4081}, Connection::kMostChunk - 1, Connection::kMostChunk,
                                  Connection::kMostChunk + 1, 5 * Connection::kMostChunk + 17}) {
    data.push_back(bytes_of(bytes, static_cast<int>(data.size())));
    got.emplace_back(bytes);
  }
  for (std::size_t i = 0; i < data.size(); ++i) {
    // Of each second one the receive is posted first.
    if (i % 2 == 0) a_.send(data[i], i, {Tag::Kind::segment, i});
    b_.receive(got[i], i, {Tag::Kind::segment, i});
    if (i % 2 == 1) a_.send(data[i], i, {Tag::Kind::segment, i});
  }
  move();
  EXPECT_EQ(got, data);
  EXPECT_EQ(a_.heard.said.size(), data.size());
  EXPECT_EQ(b_.heard.said.size(), data.size());
}

// News of a failure does not queue behind a bucket.
TEST_F(ConnectionTest, AFrameOvertakesTheRestOfATransfer) {
  auto data = bytes_of(8 << 20, 1);
  std::vector<std::byte> got(data.size());
  begin_large(data, got);
  a_.frame("news");
  move();
  EXPECT_THAT(b_.heard.said, ElementsAre("frame news", "through 1"));
  EXPECT_EQ(got, data);
}

// As from a network that delivers what it likes.
TEST_F(ConnectionTest, WhateverItIsCutInto) {
  auto data = bytes_of(10000, 1), sent = bytes_of(10000, 2);
  a_.frame("before");
  a_.receive(data, 1, kOther);
  a_.connection->write();
  for (const char byte : intercepted(b_)) say_to(b_, {&byte, 1});
  EXPECT_THAT(b_.heard.said, ElementsAre("frame before"));
  b_.send(sent, 2, kOther);
  b_.connection->write();
  for (const char byte : intercepted(a_)) say_to(a_, {&byte, 1});
  EXPECT_EQ(data, sent);
  EXPECT_THAT(a_.heard.said, ElementsAre("through 1"));
}

// The memory is the program's again, and what the peer gets of a chunk that had begun is what was in it.
TEST_F(ConnectionTest, ATransferThatIsGivenUpEndsWithItsChunk) {
  auto data = bytes_of(8 << 20, 1);
  std::vector<std::byte> got(data.size());
  begin_large(data, got);
  a_.connection->cancel_transfers();
  const auto before = std::exchange(data, {});
  a_.frame("the cause");
  move();
  EXPECT_THAT(b_.heard.said, ElementsAre("frame the cause"));
  const auto end = std::find_if(got.rbegin(), got.rend(), [](std::byte byte) { return byte != std::byte{}; });
  const auto come = static_cast<std::size_t>(std::distance(end, got.rend()));
  EXPECT_GT(come, 0u);
  EXPECT_TRUE(std::equal(got.begin(), got.begin() + static_cast<std::ptrdiff_t>(come), before.begin()));
  EXPECT_THAT(a_.heard.said, IsEmpty());
}

TEST_F(ConnectionTest, WhatComesForAReceiveThatIsGivenUpIsDropped) {
  auto data = bytes_of(8 << 20, 1);
  std::vector<std::byte> got(data.size());
  begin_large(data, got);
  b_.connection->read();
  b_.connection->cancel_transfers();
  const auto before = got;
  a_.frame("more");
  move();
  EXPECT_THAT(b_.heard.said, ElementsAre("frame more"));
  EXPECT_EQ(got, before) << "no byte has been written since";
}

TEST_F(ConnectionTest, TwoSizesOfOneTransferAreRefused) {
  auto data = bytes_of(1000, 1);
  std::vector<std::byte> got(999);
  b_.receive(got, 1, kOther);
  b_.connection->write();
  a_.connection->read();
  EXPECT_THROW(a_.send(data, 2, kOther), wire::Broken);
  a_.send(data, 3);
  a_.connection->write();
  b_.connection->read();
  EXPECT_THROW(b_.receive(got, 4), wire::Broken) << "that it has come before";
  b_.receive(got, 5, {Tag::Kind::segment, 8});
  a_.send(data, 6, {Tag::Kind::segment, 8});
  EXPECT_THROW(move(), wire::Broken) << "that it comes";
}

TEST_F(ConnectionTest, WhatIsNoStreamOfThisVersionIsRefused) {
  const auto header = [](int what, int kind, const std::string& bytes, int number) {
    std::string all = {static_cast<char>(what), static_cast<char>(kind), 0, 0};
    all += bytes + std::string(4 - bytes.size(), '\0') + static_cast<char>(number);
    return all + std::string(16 - all.size(), '\0');
  };
  const std::string wrong[] = {std::string(16, 'G'),       header(0, 0, "", 0),       header(4, 0, "\10", 0),
                               header(1, 0, {0, 5}, 0),    header(2, 0, "\7", 0),     header(3, 2, "\1", 7),
                               header(3, 1, {1, 0, 8}, 8), header(3, 1, {0, 0, 1}, 9)};
  for (const std::string& bytes : wrong) {
    connect();
    std::vector<std::byte> room(100);
    b_.receive(room, 1, {Tag::Kind::segment, 9});
    EXPECT_THROW(say_to(b_, bytes), wire::Broken) << ::testing::PrintToString(bytes);
  }
}

TEST_F(ConnectionTest, AnEndComesAfterWhatWasSentBefore) {
  a_.frame("goodbye");
  a_.connection->write();
  a_.connection.reset();
  b_.frame("too late");
  b_.connection->write();  // nobody takes it, and that is no error yet
  EXPECT_THROW(
      {
        b_.connection->read();
        b_.connection->read();
      },
      ConnectionEnded);
  EXPECT_THAT(b_.heard.said, ElementsAre("frame goodbye"));
  EXPECT_FALSE(b_.connection->wants_to_write());
}

}  // namespace
}  // namespace lockstep::tcp::connection_test
