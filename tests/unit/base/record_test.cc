// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/record.h"

#include <gtest/gtest.h>

namespace lockstep::record_test {
namespace {

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
  fields.kind("example 1");
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
  fields.rest("rest", example.rest);
};

const Example kExample{-1, INT64_MIN, true, "a b", 'z', "two\nlines"};
const std::string kText =
    "lockstep example 1\nnumber -1\nlarge -9223372036854775808\nflag 1\ntext a b\nletter z\nrest two\nlines";

TEST(Record, IsReadAsItWasWritten) {
  EXPECT_EQ(write_record(kExample, kFields), kText);
  EXPECT_EQ(read_record<Example>(kText, kFields), kExample);
  EXPECT_EQ(read_record<Example>(write_record(Example{}, kFields), kFields), Example{});
}

TEST(Record, ATextCannotBecomeAField) {
  Example example = kExample;
  example.text = "a\nletter q";
  EXPECT_EQ(read_record<Example>(write_record(example, kFields), kFields)->letter, 'z');
}

TEST(Record, FieldsOfALaterVersionArePassedOver) {
  std::string text = kText;
  text.insert(text.find("large"), "colour blue\n");
  text.insert(text.find("rest"), "\nshape\n");
  EXPECT_EQ(read_record<Example>(text, kFields), kExample);
}

TEST(Record, AnOptionalFieldIsFoundBehindOthersAndMayBeMissing) {
  struct Process {
    std::string host;
    std::string space;
    std::string name;
  };
  const auto fields_of = [](auto& process, auto& fields) {
    fields("host", process.host);
    fields.optional("space", process.space);
    fields("name", process.name);
  };
  const auto both = read_record<Process>("host a\nuid 0\nspace 9\nname b\n", fields_of);
  ASSERT_TRUE(both);
  EXPECT_EQ(both->space, "9");
  EXPECT_EQ(both->name, "b");
  const auto without = read_record<Process>("host a\nuid 0\nname b\n", fields_of);
  ASSERT_TRUE(without);
  EXPECT_EQ(without->space, "");
  EXPECT_EQ(without->name, "b");
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

TEST(Record, HasEnumsOptionalNumbersAndItems) {
  enum class Colour { red, green };
  struct Picture {
    Colour colour = Colour::red;
    std::optional<std::int64_t> width;
    std::string title;
    std::vector<std::string> lines;
  };
  const auto fields_of = [](auto& picture, auto& fields) {
    fields("colour", picture.colour, Colour::green);
    fields("width", picture.width);
    fields.items("texts", picture.title, picture.lines);
  };
  const Picture picture{Colour::green, 7, "two\nlines", {"", "1:x\n"}};
  const std::string text = write_record(picture, fields_of);
  EXPECT_EQ(text, "colour 1\nwidth 7\ntexts 9:two\nlines8:0:4:1:x\n");
  const auto read = read_record<Picture>(text, fields_of);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->colour, Colour::green);
  EXPECT_EQ(read->width, 7);
  EXPECT_EQ(read->title, picture.title);
  EXPECT_EQ(read->lines, picture.lines);
  EXPECT_EQ(write_record(Picture{}, fields_of), "colour 0\nwidth -1\ntexts 0:0:");
  EXPECT_EQ(read_record<Picture>("colour 0\nwidth -1\ntexts 0:0:", fields_of)->width, std::nullopt);
  for (const char* none :
       {"colour 2\nwidth -1\ntexts 0:0:", "colour 0\nwidth -2\ntexts 0:0:", "colour 0\nwidth -1\ntexts 0:",
        "colour 0\nwidth -1\ntexts 0:0:0:", "colour 0\nwidth -1\ntexts 0:1:x", "colour 0\nwidth -1\n"}) {
    EXPECT_FALSE(read_record<Picture>(none, fields_of)) << none;
  }
}

TEST(Record, OtherTextIsNone) {
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = kText;
    return text.replace(text.find(from), from.size(), to);
  };
  for (const std::string& text :
       {std::string(), std::string("\n"), std::string("lockstep"), with("example 1", "example 2"),
        with("lockstep example 1\n", ""), "x y\n" + kText, with("number -1\n", ""), with("number -1", "number -2"),
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
