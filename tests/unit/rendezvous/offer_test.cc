#include "runtime/rendezvous/offer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/base/error.h"

namespace lockstep::rendezvous {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Offer, RoundTrip) {
  const Offer offer{.address = {"fe80::1", 4711}, .token = "abc", .secret = store::Secret::random()};
  const Offer read = decode_offer(encode(offer), "here");
  EXPECT_EQ(read.address, offer.address);
  EXPECT_EQ(read.token, "abc");
  EXPECT_TRUE(read.secret == offer.secret);
}

TEST(Offer, ASecretThatEveryRankWasGivenIsNotTold) {
  const Offer offer{.address = {"n0", 4711}, .token = "abc", .secret = {}};
  EXPECT_FALSE(decode_offer(encode(offer), "here").secret);
}

TEST(Offer, WhatIsNoneIsRefusedWithoutShowingIt) {
  const std::string hex(64, 'a');
  const std::string all_wrong[] = {std::string(),
                                   "127.0.0.1:1 abc " + hex,
                                   "lockstep-2 127.0.0.1:1 abc " + hex,
                                   "lockstep-1 nowhere abc " + hex,
                                   "lockstep-1 127.0.0.1:1  " + hex,
                                   "lockstep-1 127.0.0.1:1 abc " + hex.substr(1),
                                   "lockstep-1 127.0.0.1:1 abc",
                                   "lockstep-1 127.0.0.1:1 abc " + hex + " x"};
  for (const std::string& wrong : all_wrong) {
    try {
      decode_offer(wrong, "unix socket @x");
      ADD_FAILURE() << "read: " << wrong;
    } catch (const CorruptData& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("unix socket @x: " + std::to_string(wrong.size()) + " bytes"),
                                      HasSubstr("same build"), Not(HasSubstr("aaaa"))));
    }
  }
}

}  // namespace
}  // namespace lockstep::rendezvous
