// SPDX-License-Identifier: Apache-2.0
// What ranks write for each other: the store's advertisement, a rank's claim, the roster of all.
#include "runtime/rendezvous/records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "runtime/rendezvous/published_roster.h"
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
  for (const std::string& wrong :
       {std::string(), with("lockstep offer 2\n", ""), with("offer 2", "offer 3"), with("127.0.0.1:1", "nowhere"),
        with("abc", ""), with("aaa", "aa"), with("secret " + hex + "\n", ""), good + "x"}) {
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

std::string text_of(const Roster& roster) {
  std::string text;
  for (const Member& member : roster) {
    text += std::to_string(member.rank) + " " + std::to_string(member.local_rank) + " " + std::to_string(member.pid) +
            " " + member.host + " " + member.boot_id + " " + member.network + "\n";
  }
  return text;
}

Member member(int rank, int local_rank, int pid, const std::string& host, const std::string& network = "net:[1]") {
  return {
      .rank = rank, .local_rank = local_rank, .pid = pid, .host = host, .boot_id = "boot-" + host, .network = network};
}

// 8 ranks a host, in blocks, as launchers start them.
Roster large(int ranks) {
  Roster roster;
  for (int i = 0; i < ranks; ++i) roster.push_back(member(i, i % 8, 100000 + i, "node" + std::to_string(i / 8)));
  return roster;
}

TEST(PublishedRoster, ComesBackWhoeverIsWhere) {
  const std::vector<Roster> rosters = {
      {member(0, 0, 7, "a")},
      {member(0, -1, 7, "a"), member(1, -1, 8, "a"), member(2, -1, 7, "b")},
      {member(0, 3, 7, "a"), member(1, 0, 7, "b"), member(2, 4, 9, "a"), member(3, -1, 9, ""), member(4, 0, 1, "b")},
      {member(0, 0, 7, "a", "net:[1]"), member(1, 0, 7, "a", "net:[2]"), member(2, 1, 8, "a", "net:[1]")},
      large(3000)};
  for (const Roster& roster : rosters) {
    EXPECT_EQ(text_of(read_published(publish(roster), "key")), text_of(roster));
  }
}

TEST(PublishedRoster, IsSmallAndInPartsThatAStoreTakes) {
  const Roster roster = large(8000);
  std::size_t bytes = 0;
  for (const std::string& part : publish(roster)) bytes += part.size();
  EXPECT_LT(bytes, 8000u * 20) << "about ten bytes a rank, and its share of a host";
  const auto parts = publish(roster, 4096);
  EXPECT_GT(parts.size(), 10u);
  for (const std::string& part : parts) EXPECT_LE(part.size(), 4096u);
  EXPECT_EQ(text_of(read_published(parts, "key")), text_of(roster));
}

TEST(PublishedRoster, WhatIsNoneIsRefused) {
  const std::string good = "lockstep roster 1\nranks 2\nhosts 1\nhost a\nboot_id b\nnetwork n\np 7\np 8\n";
  EXPECT_EQ(read_published(std::vector{good}, "key").size(), 2u);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    return text.replace(text.find(from), from.size(), to);
  };
  for (const std::string& text :
       {std::string(), std::string("x"), with("roster 1", "roster 2"), with("ranks 2", "ranks 3"),
        with("ranks 2", "ranks 1"), with("ranks 2", "ranks 999999999"), with("hosts 1", "hosts 2"),
        with("hosts 1", "hosts 2147483647"), with("hosts 1", "hosts 0"), with("p 7", "p x"), with("p 7", "p -1"),
        with("p 7", "p 7 h1"), with("p 7", "p 7 h-1"), with("p 7", "p 7 l"), with("p 7", "p 7 x1"), with("p 7", "p"),
        with("p 8\n", "p 8"), good + "p 9\n"}) {
    EXPECT_THAT(error_of<CorruptData>([&] { read_published(std::vector{text}, "the/key"); }), HasSubstr("'the/key'"))
        << text;
  }
  EXPECT_THROW(read_published({}, "key"), CorruptData);
}

}  // namespace
}  // namespace lockstep::rendezvous::records_test
