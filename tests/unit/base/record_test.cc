// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/record.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "tests/support/error_of.h"

namespace lockstep::record_test {
namespace {

using lockstep::testing::error_of;

struct Example {
  int number = 0;
  std::int64_t large = 0;
  bool flag = false;
  std::string text;
  char letter = 'a';
  std::string rest;
  bool operator==(const Example&) const = default;
};

constexpr auto kFields = [](auto& example, auto& fields) {
  fields.kind("example");
  fields("number", example.number, -1, 7);
  fields("large", example.large);
  fields("flag", example.flag);
  fields("text", example.text);
  fields(
      "letter", example.letter, [](char letter) { return std::string(1, letter); },
      [](std::string_view text) {
        if (text.size() != 1) throw InvalidArgument("no letter");
        return text.front();
      });
  fields.lines("rest", example.rest);
};

const Example kExample{-1, INT64_MIN, true, "a b", 'z', "two\nlines \\n"};
const std::string kText =
    "lockstep example\nnumber -1\nlarge -9223372036854775808\nflag 1\ntext a b\nletter z\nrest two\\nlines \\\\n\n";

TEST(Record, IsReadAsItWasWritten) {
  EXPECT_EQ(write_record(kExample, kFields), kText);
  EXPECT_EQ(read_record<Example>(kText, kFields), kExample);
  EXPECT_EQ(read_record<Example>(write_record(Example{}, kFields), kFields), Example{});
}

TEST(Record, ATextCannotBecomeAField) {
  Example example = kExample;
  example.text = "a\nletter q";
  const auto read = read_record<Example>(write_record(example, kFields), kFields);
  EXPECT_EQ(read->letter, 'z');
  EXPECT_EQ(read->text, "a?letter q") << "it is shown in a message of one line";
}

TEST(Record, FieldsOfAnotherBuildArePassedOver) {
  std::string text = kText;
  text.insert(text.find("large"), "colour blue\n");
  text.insert(text.find("rest"), "\nshape\n");
  text += "more\n";
  EXPECT_EQ(read_record<Example>(text, kFields), kExample);
}

struct Process {
  std::string host = {};
  std::string space = {};
  std::string name = {};
  bool operator==(const Process&) const = default;
};

TEST(Record, AnOptionalFieldIsFoundBehindOthersAndMayBeMissing) {
  const auto fields_of = [](auto& process, auto& fields) {
    fields("host", process.host);
    fields.optional("space", process.space);
    fields("name", process.name);
  };
  EXPECT_EQ(read_record<Process>("host a\nuid 0\nspace 9\nname b\n", fields_of), (Process{"a", "9", "b"}));
  EXPECT_EQ(read_record<Process>("host a\nuid 0\nname b\n", fields_of), (Process{"a", "", "b"}));
  EXPECT_FALSE(read_record<Process>("space 9\nname b\n", fields_of));
}

TEST(Texts, AreReadAsTheyWereWritten) {
  const std::vector<std::string> texts{"", "a:b", "3:c\n", std::string("\0", 1)};
  EXPECT_EQ(read_texts(write_texts(texts)), texts);
  EXPECT_EQ(read_texts(""), std::vector<std::string>{});
  for (const char* none : {"0", "1:", "2:a", "-1:", "x:a", ":", "1:ab", "99999999999999999999:a"}) {
    EXPECT_EQ(read_texts(none), std::nullopt) << none;
  }
}

struct Point {
  int x = 0;
  std::string name = {};
  bool operator==(const Point&) const = default;
};
enum class Colour { red, green };
struct Picture {
  Colour colour = Colour::red;
  std::optional<std::int64_t> width = {};
  std::optional<double> weight = {};
  std::uint64_t hash = 0;
  std::vector<std::string> lines = {};
  std::set<int> sizes = {};
  std::vector<Point> points = {};
  Point middle = {};
  bool operator==(const Picture&) const = default;
};

constexpr auto kPointFields = [](auto& point, auto& fields) {
  fields("x", point.x, 0, 9);
  fields.lines("name", point.name);
};
constexpr auto kPictureFields = [](auto& picture, auto& fields) {
  fields("colour", picture.colour, Colour::green);
  fields("width", picture.width);
  fields("weight", picture.weight);
  fields("hash", picture.hash);
  fields.list("lines", picture.lines);
  fields.list("sizes", picture.sizes);
  fields.list("points", picture.points, kPointFields);
  fields.record("middle", picture.middle, kPointFields);
};
const std::string kEmptyPicture = "colour 0\nwidth \nweight \nhash 0\nlines \nsizes \npoints \nmiddle x 0\\nname \\n\n";

TEST(Record, HasEnumsOptionalNumbersListsAndRecords) {
  const Picture picture{.colour = Colour::green,
                        .width = -7,
                        .weight = 0.1,
                        .hash = UINT64_MAX,
                        .lines = {"", "1:x\n"},
                        .sizes = {3, -4},
                        .points = {{1, "a\nb"}, {2, "\\"}},
                        .middle = {3, "c"}};
  const std::string text = write_record(picture, kPictureFields);
  EXPECT_EQ(text,
            "colour 1\nwidth -7\nweight 0.1\nhash 18446744073709551615\nlines 0:4:1:x\\n\nsizes 2:-41:3\n"
            "points 14:x 1\\nname a\\\\nb\\n12:x 2\\nname \\\\\\\\\\n\nmiddle x 3\\nname c\\n\n");
  EXPECT_EQ(read_record<Picture>(text, kPictureFields), picture);
  EXPECT_EQ(write_record(Picture{}, kPictureFields), kEmptyPicture);
  EXPECT_EQ(read_record<Picture>(kEmptyPicture, kPictureFields), Picture{});
  for (const auto& [from, to] :
       std::vector<std::pair<std::string, std::string>>{{"colour 0", "colour 2"},
                                                        {"width ", "width x"},
                                                        {"weight ", "weight 1x"},
                                                        {"hash 0", "hash -1"},
                                                        {"hash 0", "hash 18446744073709551616"},
                                                        {"lines ", "lines 1:"},
                                                        {"lines \n", ""},
                                                        {"sizes ", "sizes 1:a"},
                                                        {"points ", "points 1:a"},
                                                        {"points ", "points 12:x 10\\nname a\\n"},
                                                        {"middle x 0", "middle x 10"},
                                                        {"name \\n", "name "}}) {
    std::string damaged = kEmptyPicture;
    damaged.replace(damaged.find(from), from.size(), to);
    EXPECT_FALSE(read_record<Picture>(damaged, kPictureFields)) << damaged;
  }
}

TEST(Record, IsRequiredWithItsOwnersName) {
  const std::vector<Point> points{{1, "a"}, {2, "b"}};
  const std::string text = write_records(points, kPointFields);
  EXPECT_EQ(require_records<Point>(text, kPointFields, "x"), points);
  EXPECT_EQ(require_record<Point>("x 1\nname a\n", kPointFields, "x"), points[0]);
  const std::string remedy = "bytes that can't be read; run the same build of lockstep on all ranks";
  EXPECT_EQ(error_of<CorruptData>([] { require_record<Point>("nonsense", kPointFields, "the point of rank 1"); }),
            "the point of rank 1: got 8 " + remedy);
  EXPECT_EQ(error_of<CorruptData>([&] { require_records<Point>(text + "more", kPointFields, "the points of rank 1"); }),
            fmt::format("the points of rank 1: got {} {}", text.size() + 4, remedy));
}

TEST(Record, OtherTextIsNone) {
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = kText;
    return text.replace(text.find(from), from.size(), to);
  };
  for (const std::string& text :
       {std::string(), std::string("\n"), std::string("lockstep"), with("example", "example 2"),
        with("lockstep example\n", ""), "x y\n" + kText, with("number -1\n", ""), with("number -1", "number -2"),
        with("number -1", "number 8"), with("number -1", "number x"), with("number -1", "number"),
        with("-9223372036854775808", "9223372036854775808"), with("flag 1", "flag 2"), with("letter z", "letter zz"),
        with("rest ", "rost "), kText.substr(0, kText.find("\nrest")), kText.substr(0, kText.find("rest"))}) {
    EXPECT_FALSE(read_record<Example>(text, kFields)) << text;
  }
}

TEST(RecordReader, TakesLinesOfOneNameInTurn) {
  RecordReader fields("p 1\np \nx\n");
  EXPECT_EQ(fields.take("p"), "1");
  EXPECT_EQ(fields.take("p"), "");
  EXPECT_TRUE(fields.complete());
  EXPECT_FALSE(fields.at_end());
  EXPECT_EQ(fields.take("p"), std::nullopt);
  EXPECT_FALSE(fields.good());
}

}  // namespace
}  // namespace lockstep::record_test
