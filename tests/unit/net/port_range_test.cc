// SPDX-License-Identifier: Apache-2.0
#include "runtime/net/port_range.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <set>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/net/tcp_socket.h"
#include "tests/support/error_of.h"

namespace lockstep::net::port_range_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_text;
using lockstep::testing::thrown_by;

std::optional<PortRange> range_of(const std::string& text) {
  return port_range(Environment({{"LOCKSTEP_PORT_RANGE", text}}));
}

TEST(PortRange, IsTwoPorts) {
  EXPECT_EQ(range_of("29500-29600"), (PortRange{29500, 29600}));
  EXPECT_EQ(range_of("29500-29600")->size(), 101);
  EXPECT_EQ(range_of("1-65535"), PortRange());
  EXPECT_EQ(range_of("7-7")->size(), 1);
  EXPECT_EQ(port_range(Environment()), std::nullopt);
  EXPECT_EQ(range_of(""), std::nullopt) << "an empty variable is none";
}

TEST(PortRange, OfAnythingElseIsAnErrorWithVariableValueAndRemedy) {
  for (const std::string text :
       {"29500", "29600-29500", "0-7", "1-65536", "a-b", "29500:29600", "-", "1-2-3", " 1-2"}) {
    expect_text(error_of<InvalidArgument>([&] { range_of(text); }),
                {"LOCKSTEP_PORT_RANGE='" + text + "'", "give FIRST-LAST", "29500-29600"});
  }
}

// Ports that this process listens at are those of the variable while one of these lives.
class Ranged {
 public:
  explicit Ranged(const PortRange& range) {
    const std::string text = std::to_string(range.first) + "-" + std::to_string(range.last);
    EXPECT_EQ(setenv("LOCKSTEP_PORT_RANGE", text.c_str(), 1), 0);
  }
  ~Ranged() { unsetenv("LOCKSTEP_PORT_RANGE"); }
};

// Four ports in a row at which nobody listened just now.
PortRange four_free_ports() {
  while (true) {
    const int first = local_address(tcp_listen({"127.0.0.1", 0}).get()).port;
    if (first + 3 > 65535) continue;
    try {
      std::vector<UniqueFd> taken;
      for (int port = first; port < first + 4; ++port) {
        taken.push_back(tcp_listen({"127.0.0.1", static_cast<std::uint16_t>(port)}));
      }
      return {static_cast<std::uint16_t>(first), static_cast<std::uint16_t>(first + 3)};
    } catch (const SystemError& error) {
      if (error.error_number() != EADDRINUSE) throw;
    }
  }
}

TEST(PortRange, IsWhatListenersTakeUntilItIsUsedUp) {
  const PortRange range = four_free_ports();
  {
    const Ranged ranged({range.first, range.first});
    EXPECT_EQ(local_address(tcp_listen({"127.0.0.1", range.last}).get()).port, range.last) << "a port that is named";
  }
  const Ranged ranged(range);
  std::vector<UniqueFd> listeners;
  std::set<int> ports;
  for (int i = 0; i < range.size(); ++i) {
    listeners.push_back(tcp_listen({"127.0.0.1", 0}));
    ports.insert(local_address(listeners.back().get()).port);
  }
  EXPECT_EQ(ports.size(), 4u);
  EXPECT_EQ(*ports.begin(), range.first);
  EXPECT_EQ(*ports.rbegin(), range.last);
  const auto error = thrown_by<SystemError>([] { tcp_listen({"localhost", 0}); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->error_number(), EADDRNOTAVAIL);
  expect_text(error->what(), {"listen at 127.0.0.1", range.describe(), "no port of these 4 is free", "wider range"});
  listeners.pop_back();
  EXPECT_TRUE(tcp_listen({"127.0.0.1", 0})) << "one is free again";
}

}  // namespace
}  // namespace lockstep::net::port_range_test
