// SPDX-License-Identifier: Apache-2.0
#include "runtime/rendezvous/init_method.h"

#include <gtest/gtest.h>

#include "tests/support/error_of.h"
#include "tests/support/messages.h"

namespace lockstep::rendezvous::init_method_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_message;

TEST(InitMethod, EmptyAndEnvMeanTheEnvironment) {
  EXPECT_EQ(parse_init_method("").kind, InitMethod::Kind::environment);
  EXPECT_EQ(parse_init_method("env://").kind, InitMethod::Kind::environment);
  EXPECT_EQ(parse_init_method("env://?rank=1&world_size=2").rank, 1);
}

TEST(InitMethod, Tcp) {
  const InitMethod method = parse_init_method("tcp://node0:23456?rank=1&world_size=4");
  EXPECT_EQ(method.kind, InitMethod::Kind::tcp);
  EXPECT_EQ(method.address.host, "node0");
  EXPECT_EQ(method.address.port, 23456);
  EXPECT_EQ(method.rank, 1);
  EXPECT_EQ(method.world_size, 4);
  EXPECT_EQ(parse_init_method("tcp://localhost:23456").rank, std::nullopt);
  EXPECT_EQ(parse_init_method("tcp://[::1]:80?rank=0").address.host, "::1");
  EXPECT_EQ(parse_init_method("tcp://[fe80::1%eth0]:80").address.host, "fe80::1%eth0");
}

TEST(InitMethod, File) {
  const InitMethod method = parse_init_method("file:///shared/job?world_size=4&rank=0");
  EXPECT_EQ(method.kind, InitMethod::Kind::file);
  EXPECT_EQ(method.path, "/shared/job");
  EXPECT_EQ(method.rank, 0);
  EXPECT_EQ(method.world_size, 4);
}

TEST(InitMethod, BadOnesAreRefusedWithTheRemedy) {
  for (const char* url :
       {"localhost:23456", "udp://x:1", "tcp://node0", "tcp://:80", "tcp://node0:0", "tcp://node0:70000",
        "tcp://node0:http", "tcp://::1:80", "tcp://[::1:80", "tcp://a:1?rank=x", "tcp://a:1?rank=-1",
        "tcp://a:1?world_size=0", "tcp://a:1?world_size=2000000", "tcp://a:1?rank=1&rank=2", "tcp://a:1?size=2",
        "file://relative/path", "file:///folder/", "env://host"}) {
    expect_message("rendezvous", url, error_of([&] { parse_init_method(url); }));
  }
}

}  // namespace
}  // namespace lockstep::rendezvous::init_method_test
