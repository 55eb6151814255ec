#include "runtime/rendezvous/init_method.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/base/error.h"
#include "tests/support/error_of.h"

namespace lockstep::rendezvous {
namespace {

using lockstep::testing::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

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
  EXPECT_THAT(refusal("localhost:23456"), AllOf(HasSubstr("not a URL"), HasSubstr("tcp://host:port")));
  EXPECT_THAT(refusal("udp://x:1"), HasSubstr("unknown scheme 'udp'"));
  EXPECT_THAT(refusal("tcp://node0"), HasSubstr("no port"));
  EXPECT_THAT(refusal("tcp://:80"), HasSubstr("no host"));
  EXPECT_THAT(refusal("tcp://node0:0"), HasSubstr("port 0"));
  EXPECT_THAT(refusal("tcp://node0:70000"), HasSubstr("not a number from 0 to 65535"));
  EXPECT_THAT(refusal("tcp://node0:http"), HasSubstr("not a number from 0 to 65535"));
  EXPECT_THAT(refusal("tcp://::1:80"), HasSubstr("needs brackets"));
  EXPECT_THAT(refusal("tcp://[::1:80"), HasSubstr("not closed"));
  EXPECT_THAT(refusal("tcp://a:1?rank=x"), HasSubstr("rank='x'"));
  EXPECT_THAT(refusal("tcp://a:1?rank=-1"), HasSubstr("rank=-1 is out of range; it must be from 0 to 32767"));
  EXPECT_THAT(refusal("tcp://a:1?world_size=0"), HasSubstr("world_size=0 is out of range; it must be from 1 to 32768"));
  EXPECT_THAT(refusal("tcp://a:1?world_size=2000000"), HasSubstr("it must be from 1 to 32768"));
  EXPECT_THAT(refusal("tcp://a:1?rank=1&rank=2"), HasSubstr("twice"));
  EXPECT_THAT(refusal("tcp://a:1?size=2"), HasSubstr("unknown parameter 'size'"));
  EXPECT_THAT(refusal("file://relative/path"), HasSubstr("three slashes"));
  EXPECT_THAT(refusal("file:///folder/"), HasSubstr("not a folder"));
  EXPECT_THAT(refusal("env://host"), HasSubstr("env:// takes no host"));
}

}  // namespace
}  // namespace lockstep::rendezvous
