// SPDX-License-Identifier: Apache-2.0
#include "runtime/net/congestion_control.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <string>

#include "runtime/base/unique_fd.h"

namespace lockstep::net::congestion_control_test {
namespace {

using std::chrono_literals::operator""us;

TEST(CongestionControl, BetweenNearHostsIsNotBbr) {
  EXPECT_TRUE(takes_reno("bbr", 70us));
  EXPECT_TRUE(takes_reno("bbr2", 499us));
  EXPECT_FALSE(takes_reno("bbr", 500us)) << "a long path is what it is for";
  for (const char* other : {"cubic", "reno", "dctcp"}) EXPECT_FALSE(takes_reno(other, 70us));
}

class Loopback : public ::testing::Test {
 protected:
  // A connection of this process with itself.
  void SetUp() override {
    const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const raw = reinterpret_cast<sockaddr*>(&address);
    ASSERT_EQ(::bind(listener.get(), raw, size), 0);
    ASSERT_EQ(::listen(listener.get(), 1), 0);
    ASSERT_EQ(::getsockname(listener.get(), raw, &size), 0);
    socket_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(socket_.get(), raw, size), 0);
    other_ = UniqueFd(::accept(listener.get(), nullptr, nullptr));
    ASSERT_TRUE(other_);
  }
  std::string has() const {
    std::array<char, 16> name{};
    socklen_t size = name.size() - 1;
    EXPECT_EQ(::getsockopt(socket_.get(), IPPROTO_TCP, TCP_CONGESTION, name.data(), &size), 0);
    return name.data();
  }

  UniqueFd socket_;
  UniqueFd other_;
};

TEST_F(Loopback, IsLeftWithoutBbr) {
  const std::string before = has();
  const std::string now = choose_congestion_control(socket_.get());
  EXPECT_EQ(has(), now);
  const bool was_bbr = before.starts_with("bbr");
  EXPECT_FALSE(now.starts_with("bbr"));
  EXPECT_EQ(now == before, !was_bbr);
}

}  // namespace
}  // namespace lockstep::net::congestion_control_test
