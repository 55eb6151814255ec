// SPDX-License-Identifier: Apache-2.0
#include "runtime/rendezvous/init_method.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "tests/support/error_of.h"

namespace lockstep::rendezvous::init_method_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_text;

std::string refusal(std::string_view url) {
  return error_of([&] { parse_init_method(url); });
}

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
  expect_text(refusal("localhost:23456"), {"not a URL", "tcp://host:port"});
  expect_text(refusal("udp://x:1"), {"unknown scheme 'udp'"});
  expect_text(refusal("tcp://node0"), {"no port"});
  expect_text(refusal("tcp://:80"), {"no host"});
  expect_text(refusal("tcp://node0:0"), {"port 0"});
  expect_text(refusal("tcp://node0:70000"), {"not a number from 0 to 65535"});
  expect_text(refusal("tcp://node0:http"), {"not a number from 0 to 65535"});
  expect_text(refusal("tcp://::1:80"), {"needs brackets"});
  expect_text(refusal("tcp://[::1:80"), {"not closed"});
  expect_text(refusal("tcp://a:1?rank=x"), {"rank='x'"});
  expect_text(refusal("tcp://a:1?rank=-1"), {"rank=-1 is out of range; it must be from 0 to 32767"});
  expect_text(refusal("tcp://a:1?world_size=0"), {"world_size=0 is out of range; it must be from 1 to 32768"});
  expect_text(refusal("tcp://a:1?world_size=2000000"), {"it must be from 1 to 32768"});
  expect_text(refusal("tcp://a:1?rank=1&rank=2"), {"twice"});
  expect_text(refusal("tcp://a:1?size=2"), {"unknown parameter 'size'"});
  expect_text(refusal("file://relative/path"), {"three slashes"});
  expect_text(refusal("file:///folder/"), {"not a folder"});
  expect_text(refusal("env://host"), {"env:// takes no host"});
}

}  // namespace
}  // namespace lockstep::rendezvous::init_method_test
