// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/cause.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "lockstep/base/error.h"
#include "tests/support/error_of.h"

namespace lockstep::cause_test {
namespace {

using lockstep::testing::expect_cause;
using lockstep::testing::expect_failure;
using lockstep::testing::thrown_by;
using Kind = Cause::Kind;
using ::testing::EndsWith;
using ::testing::Pointee;

const std::vector<Kind> kAllKinds{Kind::lost,    Kind::silent,  Kind::left,     Kind::failed,
                                  Kind::aborted, Kind::timeout, Kind::mismatch, Kind::stopped};

Cause example() {
  return {.kind = Kind::timeout,
          .rank = 2,
          .reporter = 0,
          .host = "node7",
          .pid = 4711,
          .restarts = 3,
          .step = 1200,
          .bucket = 4,
          .sequence = 41,
          .error_number = 28,
          .signal = 9,
          .ends_group = false,
          .text = "rank 2 (host node7, pid 4711) did not arrive\nin all_reduce 41; see why"};
}

TEST(Cause, EveryFieldSurvivesTheCodec) {
  for (const Kind kind : kAllKinds) {
    Cause cause = example();
    cause.kind = kind;
    EXPECT_EQ(decode_cause(encode(cause)), cause) << name_of(kind);
  }
  EXPECT_EQ(decode_cause(encode(Cause{})), Cause{});
  std::string of_a_later_version = encode(example());
  of_a_later_version.insert(of_a_later_version.find("rank"), "colour blue\n");
  EXPECT_EQ(decode_cause(of_a_later_version), example());
}

TEST(Cause, ALongTextIsCutBetweenCharacters) {
  Cause cause;
  for (int i = 0; i < 1000; ++i) cause.text += "\u00e4\u20ac";
  for (std::size_t most = 768; most < 776; ++most) {
    const std::string bytes = encode(cause, most);
    EXPECT_LE(bytes.size(), most);
    const auto decoded = decode_cause(bytes);
    ASSERT_TRUE(decoded);
    const std::string kept = decoded->text.substr(0, decoded->text.size() - 4);
    EXPECT_EQ(cause.text.substr(0, kept.size()), kept);
    EXPECT_NE(static_cast<unsigned char>(cause.text[kept.size()]) & 0xC0, 0x80) << most;
  }
}

TEST(Cause, ExtremesOfEveryFieldStillLeaveRoomForText) {
  Cause cause = example();
  cause.host = std::string(255, 'h');
  cause.rank = cause.reporter = cause.pid = cause.restarts = cause.bucket = cause.error_number = cause.signal =
      std::numeric_limits<int>::min();
  cause.step = cause.sequence = std::numeric_limits<std::int64_t>::min();
  cause.text = std::string(2000, 'x');
  const auto decoded = decode_cause(encode(cause, 768));
  ASSERT_TRUE(decoded);
  EXPECT_THAT(decoded->text, EndsWith("x ..."));
  cause.text = decoded->text;
  EXPECT_EQ(*decoded, cause);
}

TEST(Cause, ControlCharactersDoNotTravelAndATerminalOnlyShowsItsError) {
  const auto decoded = decode_cause(encode(Cause{.host = "a\nrank 7\x1b", .text = "red \x1b[31m\a"}));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(*decoded, (Cause{.host = "a?rank 7?", .text = "red ?[31m?"}));
  const Cause cause{.text = "rank 1 failed: \x1b]0;title\a"};
  const auto error = make_error<PeerLost>(cause);
  EXPECT_STREQ(error.what(), "rank 1 failed: ?]0;title?");
  EXPECT_EQ(error.cause()->text, cause.text) << "what was told goes on as it was";
}

TEST(Cause, OtherBytesAreRefused) {
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = encode(example());
    return text.replace(text.find(from), from.size(), to);
  };
  for (const std::string& bytes :
       {std::string(), std::string("hello"), std::string("kind lost\n"), with("kind timeout", "kind odd"),
        with("kind timeout\n", ""), with("rank 2", "rank x"), with("rank 2", "rank 99999999999"),
        with("ends_group 0", "ends_group no"), with("step 1200\n", ""), with("text ", "")}) {
    EXPECT_EQ(decode_cause(bytes), std::nullopt) << bytes;
  }
}

TEST(Cause, WhoSpeaksOfAnotherRankAccuses) {
  EXPECT_TRUE((Cause{.rank = 2, .reporter = 0}.is_accusation()));
  EXPECT_FALSE((Cause{.rank = 2, .reporter = 2}.is_accusation()));
  EXPECT_FALSE((Cause{.rank = 2, .reporter = -1}.is_accusation()));
  EXPECT_FALSE((Cause{.rank = -1, .reporter = 2}.is_accusation()));
}

TEST(Cause, EachKindHasItsErrorWhichKeepsTheCause) {
  EXPECT_EQ(Error("plain").cause(), nullptr);
  for (const Kind kind : kAllKinds) {
    Cause cause = example();
    cause.kind = kind;
    try {
      throw_error(cause);
    } catch (const Error& error) {
      EXPECT_EQ(error.what(), cause.text);
      EXPECT_THAT(error.cause(), Pointee(cause));
      EXPECT_EQ(dynamic_cast<const Timeout*>(&error) != nullptr, kind == Kind::timeout);
      EXPECT_EQ(dynamic_cast<const Mismatch*>(&error) != nullptr, kind == Kind::mismatch);
      EXPECT_EQ(dynamic_cast<const PeerLost*>(&error) != nullptr, kind != Kind::timeout && kind != Kind::mismatch);
    }
  }
}

TEST(Cause, WhoKnowsMoreOfAFailureKeepsItsTypeAndCause) {
  Cause cause = example();
  cause.step = cause.bucket = -1;
  cause.kind = Kind::timeout;
  const auto again = [](const auto& error, const char* text, int place) {
    try {
      throw error;
    } catch (const Error& caught) {
      throw_again(caught, text, place, place);
    }
  };
  const auto late = thrown_by<Timeout>([&] { again(make_error<Timeout>(cause), "step 3, bucket 3: late", 3); });
  ASSERT_TRUE(late);
  EXPECT_STREQ(late->what(), "step 3, bucket 3: late");
  expect_cause(*late, {.kind = Kind::timeout, .rank = cause.rank, .step = 3, .bucket = 3});
  // The first to know says it.
  expect_failure<PeerLost>([&] { again(make_error<PeerLost>(example()), "later", 7); },
                           {.kind = example().kind, .step = example().step, .bucket = example().bucket});
  const auto plain = thrown_by<Mismatch>([&] { again(Mismatch("plain"), "more", 7); });
  ASSERT_TRUE(plain);
  EXPECT_STREQ(plain->what(), "more");
  EXPECT_EQ(plain->cause(), nullptr);
  EXPECT_THROW(again(InvalidArgument("of the program"), "more", 7), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::cause_test
