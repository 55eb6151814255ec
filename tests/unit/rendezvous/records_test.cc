// SPDX-License-Identifier: Apache-2.0
#include "runtime/rendezvous/records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "tests/support/error_of.h"

namespace lockstep::rendezvous::records_test {
namespace {

using lockstep::testing::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(StoreAdvertisement, RoundTrip) {
  const StoreAdvertisement advertisement{
      .address = {"fe80::1", 4711}, .token = "abc", .secret = store::Secret::random()};
  const StoreAdvertisement read = decode_advertisement(encode(advertisement), "here");
  EXPECT_EQ(read.address, advertisement.address);
  EXPECT_EQ(read.token, "abc");
  EXPECT_TRUE(read.secret == advertisement.secret);
}

TEST(StoreAdvertisement, ASecretThatEveryRankWasGivenIsNotTold) {
  const StoreAdvertisement advertisement{.address = {"n0", 4711}, .token = "abc", .secret = {}};
  EXPECT_FALSE(decode_advertisement(encode(advertisement), "here").secret);
}

TEST(StoreAdvertisement, WhatIsNoneIsRefusedWithoutShowingIt) {
  const std::string hex(64, 'a');
  const std::string good = "lockstep offer 2\nstore 127.0.0.1:1\ntoken abc\nsecret " + hex + "\n";
  EXPECT_EQ(decode_advertisement(good, "here").token, "abc");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    return text.replace(text.find(from), from.size(), to);
  };
  const std::string all_wrong[] = {std::string(),
                                   with("lockstep offer 2\n", ""),
                                   with("offer 2", "offer 3"),
                                   with("127.0.0.1:1", "nowhere"),
                                   with("abc", ""),
                                   with("aaa", "aa"),
                                   with("secret " + hex + "\n", ""),
                                   good + "x"};
  for (const std::string& wrong : all_wrong) {
    EXPECT_THAT(error_of<CorruptData>([&] { decode_advertisement(wrong, "unix socket @x"); }),
                AllOf(HasSubstr("unix socket @x holds " + std::to_string(wrong.size()) + " bytes"),
                      HasSubstr("same build"), Not(HasSubstr("aaaa"))));
  }
}

TEST(Claim, RoundTrip) {
  const Claim claim{
      .member = {.rank = 3, .local_rank = -1, .pid = 42, .host = "node-7.example", .boot_id = "b", .network = "n"},
      .world_size = 9,
      .process = "p.1",
      .serial = 2};
  const Claim read = decode_claim(encode(claim), "key");
  EXPECT_EQ(encode(read), encode(claim));
  EXPECT_EQ(read.member.host, "node-7.example");
  EXPECT_EQ(read.member.local_rank, -1);
  EXPECT_TRUE(read.member.beside(claim.member));
  std::string longer = encode(claim) + "x";
  EXPECT_THROW(decode_claim(longer, "key"), CorruptData);
}

}  // namespace
}  // namespace lockstep::rendezvous::records_test
