#include "runtime/comm/init/own_address.h"

#include <gtest/gtest.h>

#include <vector>

namespace lockstep {
namespace {

const std::vector<net::Interface> kInterfaces = {{.name = "lo", .address = "127.0.0.1", .loopback = true},
                                                 {.name = "eth0", .address = "203.0.113.7"},
                                                 {.name = "ib0", .address = "198.51.100.7"}};

rendezvous::Roster two_ranks(const char* boot_of_second) {
  return {{.rank = 0, .local_rank = 0, .pid = 1, .host = "a", .boot_id = "a"},
          {.rank = 1, .local_rank = 0, .pid = 2, .host = "b", .boot_id = boot_of_second}};
}

TEST(OwnAddress, ByLoopbackNobodyComesFromAnotherHost) {
  EXPECT_EQ(own_address("127.0.1.1:4711", two_ranks("a"), kInterfaces, {}), "127.0.0.1") << "one host";
  EXPECT_EQ(own_address("127.0.1.1:4711", two_ranks("b"), kInterfaces, {}), "203.0.113.7");
  Environment wishes;
  wishes.set("GLOO_SOCKET_IFNAME", "ib0");
  EXPECT_EQ(own_address("127.0.1.1:4711", two_ranks("b"), kInterfaces, wishes), "198.51.100.7");
}

TEST(OwnAddress, AStoreInThisProcessHasNone) {
  EXPECT_EQ(own_address("in-process", two_ranks("a"), kInterfaces, {}), "");
}

}  // namespace
}  // namespace lockstep
