// SPDX-License-Identifier: Apache-2.0
#include "runtime/net/congestion_control.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>

#include "lockstep/base/error.h"
#include "runtime/base/unique_fd.h"
#include "tests/support/error_of.h"

namespace lockstep::net {
namespace {

using std::chrono_literals::operator""us;

CongestionControl of(const std::string& value) {
  return CongestionControl::of(Environment({{"LOCKSTEP_TCP_CONGESTION", value}}));
}

TEST(CongestionControl, BetweenNearHostsItIsNotBbr) {
  const CongestionControl chosen = CongestionControl::of(Environment());
  EXPECT_EQ(chosen.instead_of("bbr", 70us), "reno");
  EXPECT_EQ(chosen.instead_of("bbr2", 499us), "reno");
  EXPECT_EQ(chosen.instead_of("bbr", 500us), std::nullopt) << "a long path is what it is for";
  for (const char* other : {"cubic", "reno", "dctcp"}) EXPECT_EQ(chosen.instead_of(other, 70us), std::nullopt);
}

TEST(CongestionControl, TheVariableDecides) {
  EXPECT_EQ(of("system").instead_of("bbr", 70us), std::nullopt);
  EXPECT_EQ(of("reno").instead_of("bbr", 70'000us), "reno");
  EXPECT_EQ(of("reno").instead_of("reno", 70us), std::nullopt);
  const std::string text = testing::error_of<InvalidArgument>([] { of("renno"); });
  testing::expect_text(text, {"LOCKSTEP_TCP_CONGESTION='renno'", "auto, system, or one of", "reno"});
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

TEST_F(Loopback, GetsTheOneThatIsNamed) {
  EXPECT_EQ(of("reno").apply(socket_.get()), "reno");
  EXPECT_EQ(has(), "reno");
}

TEST_F(Loopback, KeepsTheSystems) {
  const std::string before = has();
  EXPECT_EQ(of("system").apply(socket_.get()), before);
  EXPECT_EQ(has(), before);
}

TEST_F(Loopback, IsLeftWithoutBbr) {
  const std::string before = has();
  const std::string now = of("auto").apply(socket_.get());
  EXPECT_EQ(has(), now);
  const bool was_bbr = before.starts_with("bbr");
  EXPECT_FALSE(now.starts_with("bbr"));
  EXPECT_EQ(now == before, !was_bbr);
}

}  // namespace
}  // namespace lockstep::net
