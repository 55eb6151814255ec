// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/snapshot/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/checkpoint/snapshot/sealed_json.h"
#include "tests/support/error_of.h"
#include "tests/support/messages.h"
#include "tests/support/sanitized.h"

namespace lockstep::checkpoint::manifest_test {
namespace {

using lockstep::testing::error_of, lockstep::testing::expect_text, lockstep::testing::kNextBit;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Json = nlohmann::json;

constexpr SealedFormat kFormat{.name = "lockstep snapshot", .version = 1};
constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();
constexpr auto kLargest = std::numeric_limits<std::uint64_t>::max();
constexpr auto kLeast = std::numeric_limits<std::int64_t>::min();
// Quotes, a newline, a NUL, a path, an emoji, a key of the format's own.
const std::vector<std::string> kNastyNames{
    "", "a\"b\\c", "line\nline", std::string("nul\0nul", 7), "../../etc", "\U0001F40C", "\x7f\x01", "xxh3", "double"};

SnapshotValues every_kind() {
  SnapshotValues values{{"yes", true},
                        {"no", false},
                        {"least", kLeast},
                        {"largest", kLargest},
                        {"tenth", 0.1},
                        {"whole", 1.0},
                        {"minus_zero", -0.0},
                        {"tiny", 5e-324},
                        {"huge", 1.7976931348623157e308},
                        {"nan", kNan},
                        {"infinity", kInfinity},
                        {"minus_infinity", -kInfinity},
                        {"text", "caf\u00e9 \"1\"\n"},
                        {"no_text", std::string()},
                        {"ints", std::vector<std::int64_t>{kLeast, 0, 7}},
                        {"doubles", std::vector<double>{1.0, kNan, -kInfinity, 2.5}},
                        {"texts", kNastyNames},
                        {"no_ints", std::vector<std::int64_t>{}},
                        {"no_doubles", std::vector<double>{}},
                        {"no_texts", std::vector<std::string>{}}};
  for (const std::string& name : kNastyNames) values["nasty " + name] = name;
  return values;
}

void expect_every_kind(SnapshotValues values) {
  EXPECT_TRUE(get_bool(values, "yes"));
  EXPECT_EQ(get_int(values, "least"), kLeast);
  EXPECT_EQ(get_uint(values, "largest"), kLargest);
  EXPECT_TRUE(std::signbit(get_double(values, "minus_zero")));
  EXPECT_TRUE(std::isnan(get_double(values, "nan")));
  EXPECT_EQ(get_text(values, "text"), "caf\u00e9 \"1\"\n");
  EXPECT_THAT(get_ints(values, "ints"), ElementsAre(kLeast, 0, 7));
  EXPECT_THAT(get_doubles(values, "doubles"), ElementsAre(1.0, ::testing::IsNan(), -kInfinity, 2.5));
  EXPECT_EQ(get_texts(values, "texts"), kNastyNames);
  EXPECT_THAT(get_doubles(values, "no_doubles"), IsEmpty());
  EXPECT_THAT(get_texts(values, "no_texts"), IsEmpty());
  SnapshotValues wanted = every_kind();
  for (const char* name : {"nan", "doubles", "no_doubles", "no_texts"}) {  // not equal to themselves, or of any kind
    values.erase(name);
    wanted.erase(name);
  }
  EXPECT_EQ(values, wanted);
}

// 'w' of the item in shards is a matrix of 2 x 3 in two files, 'none' has no elements.
Manifest sample() {
  return {
      .step = 1200,
      .generation = 3,
      .world_size = 2,
      .time = "2026-11-23T03:00:00Z",
      .writer = "rank 0 (host node7, pid 4711)",
      .reason = "every 500 steps",
      .files = {{.name = "model.safetensors", .bytes = kLargest, .xxh3 = 0xabcdef0123456789, .owner = 0},
                {.name = "optimizer.safetensors", .bytes = 0, .xxh3 = 0, .owner = 1, .host = "node8"},
                {.name = "critic.r0000.safetensors", .bytes = 1, .xxh3 = 1, .owner = 0},
                {.name = "critic.r0001.safetensors", .bytes = 2, .xxh3 = 2, .owner = 1}},
      .items = {{.name = "model", .type = "Module", .tensors = "model.safetensors", .values = {{}}},
                {.name = "optimizer", .type = "AdamW", .tensors = "optimizer.safetensors", .values = {every_kind()}},
                {.name = "samples",
                 .type = "value",
                 .kind = ItemKind::per_rank,
                 .at_another_size = AtAnotherSize::sum,
                 .values = {{{"value", std::int64_t{3}}}, {{"value", kLargest}}}},
                {.name = "critic",
                 .type = "AdamW",
                 .kind = ItemKind::sharded,
                 .sliced = {{.name = "w",
                             .dtype = DType::bf16,
                             .shape = {2, 3},
                             .is_transposed = true,
                             .slices = {{"critic.r0000.safetensors", 0, 5}, {"critic.r0001.safetensors", 5, 6}}},
                            {.name = "none", .shape = {0}}},
                 .values = {{{"steps", 3.0}}}}}};
}

// What an error says of the text.
std::string refusal(const std::string& text) {
  return error_of<CorruptData>([&] { manifest_from_text(text); });
}

// Of the sample, changed and sealed anew: a checksum alone makes no manifest.
std::string refusal_of(const std::function<void(Json&)>& change) {
  Json json = unseal(to_text(sample()), kFormat, "it");
  change(json);
  return refusal(seal(std::move(json), kFormat));
}

// Its text is a promise to later locksteps, which read it.
TEST(Manifest, IsReadAsItWasWritten) {
  const std::string text = to_text(sample());
  lockstep::testing::expect_message("checkpoint", "a manifest", text);
  const Manifest read = manifest_from_text(text);
  EXPECT_EQ(to_text(read), text);
  EXPECT_EQ(read.files[0].host, "") << "as earlier locksteps write it";
  EXPECT_EQ(read.items[2].tensors, std::nullopt);
  EXPECT_EQ(read.items[3].tensors, std::nullopt);
  expect_every_kind(read.items[1].values.at(0));
  // Words of a program make no lines in a listing.
  Manifest manifest = sample();
  manifest.reason = "epoch 3\n9  2026-11-23T03:00:00Z  whole";
  EXPECT_EQ(manifest_from_text(to_text(manifest)).reason, "epoch 3 9  2026-11-23T03:00:00Z  whole");
  manifest.items[1].values[0]["text"] = std::string("\xff\xfe");
  expect_text(error_of([&] { to_text(manifest); }), {"not UTF-8"});
}

TEST(Manifest, ValuesAloneAreReadAsTheyWereWritten) {
  const std::string text = to_text(every_kind());
  expect_every_kind(values_from_text(text));
  EXPECT_EQ(to_text(values_from_text(text)), text);
  EXPECT_THAT(values_from_text(to_text(SnapshotValues())), IsEmpty());
}

TEST(Manifest, CutAnywhereIsRefused) {
  const std::string text = to_text(sample());
  for (std::size_t bytes = 0; bytes < text.size(); ++bytes) {
    EXPECT_THROW(manifest_from_text(text.substr(0, bytes)), CorruptData) << bytes;
  }
}

TEST(Manifest, WithAnyBitFlippedIsRefused) {
  std::string text = to_text(sample());
  for (std::size_t bit = 0; bit < 8 * text.size(); bit += kNextBit) {
    const char was = text[bit / 8];
    text[bit / 8] = static_cast<char>(static_cast<unsigned char>(was) ^ (1u << (bit % 8)));
    EXPECT_THROW(manifest_from_text(text), CorruptData) << "bit " << bit % 8 << " of '" << was << "' at " << bit / 8;
    text[bit / 8] = was;
  }
}

TEST(Manifest, ThatIsNoneIsRefusedWithItsReason) {
  for (const char* text : {"", "{}", "[]", "null", "3", "\"lockstep snapshot\"", "not json", "{\"format\": 3}"}) {
    EXPECT_NE(refusal(text), "") << text;
  }
  expect_text(refusal(seal({{"step", 1}}, {.name = "lockstep generation", .version = 1})), {"'format'"});
  expect_text(refusal(seal({{"step", 1}}, {.name = "lockstep snapshot", .version = 0})), {"version 0", "no lockstep"});
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += R"({"a":)";
  expect_text(refusal(deep), {"nested too deeply"});
  expect_text(refusal(R"({"format": "lockstep snapshot", "format": "lockstep snapshot"})"), {"twice"});
}

TEST(Manifest, WithoutAMemberOrWithOneOfAnotherKindIsRefused) {
  struct Members {
    const char* of;  // a JSON pointer
    const char* where;
    std::vector<const char*> names;
  };
  for (const Members& members :
       {Members{"", "it", {"step", "generation", "world_size", "time", "writer", "reason", "files", "items"}},
        Members{"/files/1", "files[1]", {"name", "bytes", "xxh3", "owner"}},
        Members{"/items/2", "items[2]", {"name", "type", "kind", "values", "at_another_size"}},
        Members{"/items/3/tensors/0", "items[3]: tensors[0]", {"name", "dtype", "shape", "transposed", "slices"}},
        Members{"/items/3/tensors/0/slices/1", "items[3]: tensors[0]: slices[1]", {"file", "begin", "end"}}}) {
    for (const char* name : members.names) {
      const Json::json_pointer of(members.of);
      const std::string where = members.where, quoted = "'" + std::string(name) + "'";
      expect_text(refusal_of([&](Json& json) { json[of].erase(name); }), {where + " has no " + quoted});
      expect_text(refusal_of([&](Json& json) { json[of][name] = nullptr; }), {where + ": " + quoted + " is not "});
    }
  }
  expect_text(refusal_of([](Json& json) { json["files"][0] = "model.safetensors"; }), {"files[0]", "an object"});
  expect_text(refusal_of([](Json& json) { json["items"][0]["values"] = Json::array(); }), {"items[0]", "an object"});
}

TEST(Manifest, WithANumberBeyondItsRangeIsRefused) {
  for (const Json& number : std::vector<Json>{-1, 1.5, kLargest, "1"}) {
    expect_text(refusal_of([&](Json& json) { json["step"] = number; }), {"'step'", "a whole number from 0"});
  }
  expect_text(refusal_of([](Json& json) { json["world_size"] = (std::int64_t{1} << 32) + 2; }), {"2147483647"});
  expect_text(refusal_of([](Json& json) { json["files"][0]["owner"] = std::int64_t{1} << 31; }), {"owner"});
  for (const char* hash : {"", "12", "0123456789ABCDEF", "0123456789abcdeg", "00123456789abcdef", " 123456789abcdef"}) {
    expect_text(refusal_of([&](Json& json) { json["files"][0]["xxh3"] = hash; }), {"16 hexadecimal digits"});
  }
}

// Items are exported to files of their names.
TEST(Manifest, NamesNoFileOutsideItsFolder) {
  for (const std::string& name :
       std::vector<std::string>{"", ".", "..", "../../evil", "/etc/passwd", "sub/evil", ".hidden",
                                std::string("model\0x", 7), "a\nb", "a\tb", "\x1b[2J"}) {
    expect_text(refusal_of([&](Json& json) { json["items"][1]["name"] = name; }), {"items[1]", "an item's name"});
    expect_text(refusal_of([&](Json& json) {
                  json["files"][0]["name"] = name;
                  json["items"][0]["tensors"] = name;
                }),
                {"files[0]", "the name of a file in this folder"});
  }
}

TEST(Manifest, ThatContradictsItselfIsRefused) {
  const auto refused = [](const char* what, const std::function<void(Json&)>& change) {
    lockstep::testing::expect_message("checkpoint", what, refusal_of(change));
  };
  refused("no ranks", [](Json& json) {
    json["world_size"] = 0;
    json["items"][2]["values"] = Json::array();
  });
  refused("no such file", [](Json& json) { json["items"][0]["tensors"] = "other.safetensors"; });
  refused("an item twice", [](Json& json) { json["items"][1]["name"] = "model"; });
  refused("a file twice", [](Json& json) { json["files"][1]["name"] = "model.safetensors"; });
  refused("values of too few ranks", [](Json& json) { json["world_size"] = 3; });
  // Of an item in shards.
  const auto sharded = [&](const char* what, const std::function<void(Json & w, Json & slices)>& change) {
    refused(what, [&](Json& json) {
      Json& tensor = json["items"][3]["tensors"][0];
      change(tensor, tensor["slices"]);
    });
  };
  sharded("slices that overlap", [](Json&, Json& slices) { slices[1]["begin"] = 4; });
  sharded("slices with a gap", [](Json&, Json& slices) { slices[0]["end"] = 4; });
  sharded("an empty slice", [](Json&, Json& slices) { slices[1]["end"] = 5; });
  sharded("a slice behind the end", [](Json&, Json& slices) { slices[1]["end"] = 7; });
  sharded("one slice of two", [](Json&, Json& slices) { slices.erase(1); });
  sharded("no slices", [](Json&, Json& slices) { slices = Json::array(); });
  sharded("two slices in a file", [](Json&, Json& slices) { slices[1]["file"] = "critic.r0000.safetensors"; });
  sharded("a slice in no file", [](Json&, Json& slices) { slices[1]["file"] = "other.safetensors"; });
  sharded("a list transposed", [](Json& w, Json&) { w["shape"] = Json::array({6}); });
  sharded("too many elements", [](Json& w, Json&) { w["shape"] = Json::array({std::int64_t{1} << 62, 2}); });
  sharded("negative sizes", [](Json& w, Json&) { w["shape"] = Json::array({-2, -3}); });
  sharded("a tensor twice", [](Json& w, Json&) { w["name"] = "none"; });
}

TEST(Manifest, IsJoinedOfTheRanksParts) {
  Manifest whole = sample(), part = sample();
  std::erase_if(whole.files, [](const ManifestFile& file) { return file.bytes == 2; });
  std::erase_if(part.files, [](const ManifestFile& file) { return file.bytes != 2; });
  std::erase_if(part.items, [](const ManifestItem& item) { return item.name != "critic"; });
  // As the last rank tells before the first: the order of slices is that of elements.
  const auto last = whole.items.back().sliced[0].slices.back();
  whole.items.back().sliced[0].slices = {last};
  part.items.back().sliced[0].slices.pop_back();
  join_part(whole, part_from_text(to_text(part)));
  EXPECT_NO_THROW(check_references(whole));
  EXPECT_EQ(to_text(whole), to_text(sample()));

  part.items.back().sliced[0].shape = {3, 2};
  expect_text(error_of<CorruptData>([&] { join_part(whole, part); }), {"'w' is BF16 [3, 2]", "rank 0 has another"});
}

// Whatever else it has, and however deep.
TEST(Manifest, OfALaterLockstepIsNoDamage) {
  const auto later = [](const char* what, const std::string& text) {
    lockstep::testing::expect_message("checkpoint", what, error_of<LaterFormat>([&] { manifest_from_text(text); }));
  };
  Json deep = 1;
  for (int level = 0; level < 20; ++level) deep = Json{{"deeper", deep}};
  later("format 2", seal({{"new", deep}}, {.name = "lockstep snapshot", .version = 2}));
  later("the last format", seal({{"new", deep}}, {.name = "lockstep snapshot", .version = kLargest}));
  const auto changed = [](const char* pointer) {
    Json json = unseal(to_text(sample()), kFormat, "it");
    json[Json::json_pointer(pointer)] = "split";
    return seal(std::move(json), kFormat);
  };
  later("another kind", changed("/items/1/kind"));
  later("another rule for other sizes", changed("/items/2/at_another_size"));
  later("another dtype", changed("/items/3/tensors/0/dtype"));
}

TEST(Manifest, ValuesOfNoKindAreRefused) {
  for (const Json& value : std::vector<Json>{nullptr,
                                             Json::object(),
                                             {{"double", "Nan"}},
                                             {{"double", 1}},
                                             {{"double", "NaN"}, {"x", 1}},
                                             {1, "a"},
                                             {1, true},
                                             {{1}},
                                             {nullptr}}) {
    expect_text(refusal_of([&](Json& json) { json["items"][1]["values"]["least"] = value; }),
                {"items[1]: 'least'", "is not a number, text"});
  }
}

}  // namespace
}  // namespace lockstep::checkpoint::manifest_test
