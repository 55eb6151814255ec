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

void expect_every_kind(const SnapshotValues& values) {
  EXPECT_TRUE(get_bool(values, "yes"));
  EXPECT_FALSE(get_bool(values, "no"));
  EXPECT_EQ(get_int(values, "least"), kLeast);
  EXPECT_EQ(get_uint(values, "largest"), kLargest);
  EXPECT_EQ(get_double(values, "tenth"), 0.1);
  EXPECT_EQ(get_double(values, "whole"), 1.0);
  EXPECT_TRUE(std::signbit(get_double(values, "minus_zero")));
  EXPECT_EQ(get_double(values, "tiny"), 5e-324);
  EXPECT_EQ(get_double(values, "huge"), 1.7976931348623157e308);
  EXPECT_TRUE(std::isnan(get_double(values, "nan")));
  EXPECT_EQ(get_double(values, "infinity"), kInfinity);
  EXPECT_EQ(get_double(values, "minus_infinity"), -kInfinity);
  EXPECT_EQ(get_text(values, "text"), "caf\u00e9 \"1\"\n");
  EXPECT_EQ(get_text(values, "no_text"), "");
  EXPECT_THAT(get_ints(values, "ints"), ElementsAre(kLeast, 0, 7));
  EXPECT_THAT(get_doubles(values, "doubles"), ElementsAre(1.0, ::testing::IsNan(), -kInfinity, 2.5));
  EXPECT_EQ(get_texts(values, "texts"), kNastyNames);
  EXPECT_THAT(get_ints(values, "no_ints"), IsEmpty());
  EXPECT_THAT(get_doubles(values, "no_doubles"), IsEmpty());
  EXPECT_THAT(get_texts(values, "no_texts"), IsEmpty());
  for (const std::string& name : kNastyNames) EXPECT_EQ(get_text(values, "nasty " + name), name);
}

Manifest sample() {
  return {
      .step = 1200,
      .generation = 3,
      .world_size = 2,
      .time = "2026-11-23T03:00:00Z",
      .writer = "rank 0 (host node7, pid 4711)",
      .reason = "every 500 steps",
      .files = {{.name = "model.safetensors", .bytes = kLargest, .xxh3 = 0xabcdef0123456789, .owner = 0},
                {.name = "optimizer.safetensors", .bytes = 0, .xxh3 = 0, .owner = 1}},
      .items = {{.name = "model", .type = "Module", .tensors = "model.safetensors", .values = {{}}},
                {.name = "optimizer", .type = "AdamW", .tensors = "optimizer.safetensors", .values = {every_kind()}},
                {.name = "samples",
                 .type = "value",
                 .kind = ItemKind::per_rank,
                 .at_another_size = AtAnotherSize::sum,
                 .values = {{{"value", std::int64_t{3}}}, {{"value", kLargest}}}}}};
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

// The same of what a later lockstep may write.
std::string later_of(const std::function<void(Json&)>& change) {
  Json json = unseal(to_text(sample()), kFormat, "it");
  change(json);
  const std::string text = seal(std::move(json), kFormat);
  return error_of<LaterFormat>([&] { manifest_from_text(text); });
}

TEST(Manifest, IsReadAsItWasWritten) {
  const std::string text = to_text(sample());
  const Manifest read = manifest_from_text(text);
  EXPECT_EQ(to_text(read), text);
  EXPECT_EQ(read.step, 1200);
  EXPECT_EQ(read.generation, 3);
  EXPECT_EQ(read.world_size, 2);
  EXPECT_EQ(read.time, "2026-11-23T03:00:00Z");
  EXPECT_EQ(read.writer, "rank 0 (host node7, pid 4711)");
  EXPECT_EQ(read.reason, "every 500 steps");
  ASSERT_EQ(read.files.size(), 2u);
  EXPECT_EQ(read.files[0].name, "model.safetensors");
  EXPECT_EQ(read.files[0].bytes, kLargest);
  EXPECT_EQ(read.files[0].xxh3, 0xabcdef0123456789);
  EXPECT_EQ(read.files[1].owner, 1);
  ASSERT_EQ(read.items.size(), 3u);
  EXPECT_EQ(read.items[0].tensors, "model.safetensors");
  EXPECT_EQ(read.items[1].type, "AdamW");
  expect_every_kind(read.items[1].values.at(0));
  EXPECT_EQ(read.items[2].kind, ItemKind::per_rank);
  EXPECT_EQ(read.items[2].at_another_size, AtAnotherSize::sum);
  EXPECT_EQ(get_uint(read.items[2].values.at(1), "value"), kLargest);
  EXPECT_EQ(read.items[2].tensors, std::nullopt);
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
  for (const char* name : {"step", "generation", "world_size", "time", "writer", "reason", "files", "items"}) {
    expect_text(refusal_of([&](Json& json) { json.erase(name); }), {"has no", name});
    expect_text(refusal_of([&](Json& json) { json[name] = Json::object(); }), {name, "is not"});
  }
  for (const char* name : {"name", "bytes", "xxh3", "owner"}) {
    expect_text(refusal_of([&](Json& json) { json["files"][1].erase(name); }), {"files[1]", "has no", name});
    expect_text(refusal_of([&](Json& json) { json["files"][1][name] = true; }), {"files[1]", name, "is not"});
  }
  for (const char* name : {"name", "type", "kind", "values"}) {
    expect_text(refusal_of([&](Json& json) { json["items"][2].erase(name); }), {"items[2]", "has no", name});
    expect_text(refusal_of([&](Json& json) { json["items"][2][name] = 5; }), {"items[2]", name, "is not"});
  }
  expect_text(refusal_of([](Json& json) { json["items"][2].erase("at_another_size"); }), {"at_another_size"});
  expect_text(refusal_of([](Json& json) { json["files"][0] = "model.safetensors"; }), {"files[0]", "an object"});
  expect_text(refusal_of([](Json& json) { json["items"][0]["values"] = Json::array(); }), {"items[0]", "an object"});
}

TEST(Manifest, WithANumberBeyondItsRangeIsRefused) {
  for (const Json& number : std::vector<Json>{-1, 1.5, kLargest, "1", nullptr}) {
    expect_text(refusal_of([&](Json& json) { json["step"] = number; }), {"'step'", "a whole number from 0"});
  }
  for (const char* name : {"world_size"}) {
    expect_text(refusal_of([&](Json& json) { json[name] = (std::int64_t{1} << 32) + 2; }), {name, "2147483647"});
  }
  expect_text(refusal_of([](Json& json) { json["files"][0]["owner"] = std::int64_t{1} << 31; }), {"owner"});
  for (const char* hash : {"", "12", "0123456789ABCDEF", "0123456789abcdeg", "00123456789abcdef", " 123456789abcdef"}) {
    expect_text(refusal_of([&](Json& json) { json["files"][0]["xxh3"] = hash; }), {"16 hexadecimal digits"});
  }
}

TEST(Manifest, NamesNoFileOutsideItsFolder) {
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string("../model.safetensors"),
        std::string("/etc/passwd"), std::string("sub/model.safetensors"), std::string(".hidden"),
        std::string("model.safetensors\0x", 19)}) {
    expect_text(refusal_of([&](Json& json) {
                  json["files"][0]["name"] = name;
                  json["items"][0]["tensors"] = name;
                }),
                {"files[0]", "the name of a file in this folder"});
  }
}

// Items are exported to files of their names.
TEST(Manifest, NamesNoItemThatIsNoFilesName) {
  for (const char* name :
       {"", ".", "..", "../../evil", "/etc/evil", "sub/evil", ".hidden", "a\nb", "a\tb", "\x1b[2J"}) {
    expect_text(refusal_of([&](Json& json) { json["items"][1]["name"] = name; }), {"items[1]", "an item's name"});
  }
  expect_text(refusal_of([](Json& json) { json["files"][0]["name"] = "a\nb"; }), {"files[0]", "name of a file"});
}

TEST(Manifest, OfNoRanksIsRefused) {
  expect_text(refusal_of([](Json& json) {
                json["world_size"] = 0;
                json["items"][2]["values"] = Json::array();
              }),
              {"'world_size'", "1 or more"});
}

TEST(Manifest, WordsOfAProgramMakeNoLinesInAListing) {
  Manifest manifest = sample();
  manifest.reason = "epoch 3\n9  2026-11-23T03:00:00Z  whole";
  EXPECT_EQ(manifest_from_text(to_text(manifest)).reason, "epoch 3 9  2026-11-23T03:00:00Z  whole");
}

TEST(Manifest, HasTheHostOfEachFileWhereItIsKnown) {
  Manifest manifest = sample();
  manifest.files[1].host = "node8";
  const Manifest read = manifest_from_text(to_text(manifest));
  EXPECT_EQ(read.files[0].host, "") << "as earlier locksteps write it";
  EXPECT_EQ(read.files[1].host, "node8");
}

TEST(Manifest, NamesEachThingOnceAndWhatIsThere) {
  expect_text(refusal_of([](Json& json) { json["items"][0]["tensors"] = "other.safetensors"; }),
              {"'model'", "'other.safetensors'", "not one of the snapshot's files"});
  expect_text(refusal_of([](Json& json) { json["items"][1]["name"] = "model"; }), {"item 'model' is there twice"});
  expect_text(refusal_of([](Json& json) { json["files"][1]["name"] = "model.safetensors"; }),
              {"file 'model.safetensors' is there twice"});
  expect_text(refusal_of([](Json& json) { json["world_size"] = 3; }), {"'samples'", "of 2 ranks", "there were 3"});
}

// The sample with an item in shards: 'w' is a matrix of 2 x 3 in two files, 'none' has no elements.
Manifest sharded_sample() {
  Manifest manifest = sample();
  manifest.files.push_back({.name = "critic.r0000.safetensors", .bytes = 1, .xxh3 = 1, .owner = 0});
  manifest.files.push_back({.name = "critic.r0001.safetensors", .bytes = 2, .xxh3 = 2, .owner = 1});
  ManifestItem item{.name = "critic", .type = "AdamW", .kind = ItemKind::sharded, .values = {{{"steps", 3.0}}}};
  item.sliced = {{.name = "w",
                  .dtype = DType::bf16,
                  .shape = {2, 3},
                  .is_transposed = true,
                  .slices = {{"critic.r0000.safetensors", 0, 5}, {"critic.r0001.safetensors", 5, 6}}},
                 {.name = "none", .shape = {0}}};
  manifest.items.push_back(item);
  return manifest;
}

TEST(Manifest, OfAnItemInShardsIsReadAsItWasWritten) {
  const std::string text = to_text(sharded_sample());
  const Manifest read = manifest_from_text(text);
  EXPECT_EQ(to_text(read), text);
  const ManifestItem& item = read.items.back();
  EXPECT_EQ(item.kind, ItemKind::sharded);
  EXPECT_EQ(item.tensors, std::nullopt);
  EXPECT_EQ(get_double(item.values.at(0), "steps"), 3.0);
  ASSERT_EQ(item.sliced.size(), 2u);
  const SlicedTensor& w = item.sliced[0];
  EXPECT_EQ(w.dtype, DType::bf16);
  EXPECT_THAT(w.shape, ElementsAre(2, 3));
  EXPECT_TRUE(w.is_transposed);
  ASSERT_EQ(w.slices.size(), 2u);
  EXPECT_EQ(w.slices[1].file, "critic.r0001.safetensors");
  EXPECT_EQ(w.slices[1].begin, 5);
  EXPECT_EQ(w.slices[1].end, 6);
  EXPECT_THAT(item.sliced[1].slices, IsEmpty());
}

TEST(Manifest, WhoseSlicesAreNotItsTensorsIsRefused) {
  const auto refused = [](const std::function<void(Json & w)>& change, const std::vector<std::string>& wanted) {
    Json json = unseal(to_text(sharded_sample()), kFormat, "it");
    change(json["items"][3]["tensors"][0]);
    const std::string text = refusal(seal(std::move(json), kFormat));
    for (const std::string& it : wanted) EXPECT_THAT(text, ::testing::HasSubstr(it));
  };
  const auto slice = [](Json& w, int i) -> Json& { return w["slices"][static_cast<std::size_t>(i)]; };
  refused([&](Json& w) { slice(w, 1)["begin"] = 4; },
          {"item 'critic': tensor 'w' has elements 4 to 6", "first 5 of 6"});
  refused([&](Json& w) { slice(w, 0)["end"] = 4; }, {"has elements 5 to 6", "first 4 of 6"});
  refused([&](Json& w) { slice(w, 0)["begin"] = 1; }, {"has elements 1 to 5", "first 0 of 6"});
  refused([&](Json& w) { slice(w, 1)["end"] = 7; }, {"has elements 5 to 7"});
  refused([&](Json& w) { slice(w, 1)["end"] = 5; }, {"has elements 5 to 5"});
  refused([&](Json& w) { slice(w, 0)["begin"] = -1; }, {"'begin'", "a whole number from 0"});
  refused([&](Json& w) { w["slices"].erase(1); }, {"ends after 5 of 6"});
  refused([&](Json& w) { w["slices"] = Json::array(); }, {"ends after 0 of 6"});
  refused([&](Json& w) { slice(w, 1)["file"] = "critic.r0000.safetensors"; }, {"has another slice too"});
  refused([&](Json& w) { slice(w, 1)["file"] = "other.safetensors"; }, {"not one of the snapshot's files"});
  refused([&](Json& w) { w["shape"] = Json::array({6}); }, {"[6] transposed, which no tensor has"});
  refused([&](Json& w) { w["shape"] = Json::array({std::int64_t{1} << 62, 2}); }, {"which no tensor has"});
  refused([&](Json& w) { w["shape"] = Json::array({-2, -3}); }, {"shape[0]", "0 or more"});
  refused([&](Json& w) { w["shape"] = "6"; }, {"'shape' is not a list"});
  refused([&](Json& w) { w["name"] = "none"; }, {"'none' is there twice"});
  refused([&](Json& w) { w["transposed"] = 1; }, {"'transposed' is not true or false"});
  for (const char* name : {"name", "dtype", "shape", "transposed", "slices"}) {
    refused([&](Json& w) { w.erase(name); }, {"items[3]: tensors[0]", "has no", name});
  }
  for (const char* name : {"file", "begin", "end"}) {
    refused([&](Json& w) { slice(w, 1).erase(name); }, {"slices[1]", "has no", name});
  }
}

TEST(Manifest, IsJoinedOfTheRanksParts) {
  Manifest whole = sharded_sample(), part = sharded_sample();
  std::erase_if(whole.files, [](const ManifestFile& file) { return file.owner == 1 && file.bytes == 2; });
  std::erase_if(part.files, [](const ManifestFile& file) { return file.bytes != 2; });
  std::erase_if(part.items, [](const ManifestItem& item) { return item.name != "critic"; });
  // As the last rank tells before the first: the order of slices is that of elements.
  const auto last = whole.items.back().sliced[0].slices.back();
  whole.items.back().sliced[0].slices = {last};
  part.items.back().sliced[0].slices.pop_back();
  join_part(whole, part_from_text(to_text(part)));
  EXPECT_NO_THROW(check_references(whole));
  EXPECT_EQ(to_text(whole), to_text(sharded_sample()));

  part.items.back().sliced[0].shape = {3, 2};
  expect_text(error_of<CorruptData>([&] { join_part(whole, part); }), {"'w' is BF16 [3, 2]", "rank 0 has another"});
}

TEST(Manifest, OfALaterKindIsRefusedByName) {
  expect_text(later_of([](Json& json) { json["items"][1]["kind"] = "split"; }),
              {"items[1]", "'kind' is 'split'", "does not know", "update lockstep"});
  expect_text(later_of([](Json& json) { json["items"][2]["at_another_size"] = "split"; }),
              {"items[2]", "'at_another_size' is 'split'"});
}

// Whatever else it has, and however deep.
TEST(Manifest, OfALaterVersionIsNoDamage) {
  Json deep = 1;
  for (int level = 0; level < 20; ++level) deep = Json{{"deeper", deep}};
  for (const std::uint64_t version : {std::uint64_t{2}, std::uint64_t{17}, kLargest}) {
    const std::string text = seal({{"new", deep}}, {.name = "lockstep snapshot", .version = version});
    expect_text(error_of<LaterFormat>([&] { manifest_from_text(text); }),
                {"the manifest was written by a later lockstep (format " + std::to_string(version),
                 "this one reads up to 1): update lockstep"});
  }
  // Of a later version, or of this one with a flipped bit: what is not sealed is damaged.
  std::string text = seal({{"step", 1}}, {.name = "lockstep snapshot", .version = 3});
  for (std::size_t bit = 0; bit < 8 * text.size(); bit += kNextBit) {
    text[bit / 8] = static_cast<char>(static_cast<unsigned char>(text[bit / 8]) ^ (1u << (bit % 8)));
    EXPECT_THROW(manifest_from_text(text), CorruptData) << bit;
    text[bit / 8] = static_cast<char>(static_cast<unsigned char>(text[bit / 8]) ^ (1u << (bit % 8)));
  }
  EXPECT_THROW(manifest_from_text(text), LaterFormat);
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

TEST(Manifest, OfTextThatIsNotUtf8IsNotWritten) {
  Manifest manifest = sample();
  manifest.items[1].values[0]["text"] = std::string("\xff\xfe");
  expect_text(error_of([&] { to_text(manifest); }), {"not UTF-8"});
}

}  // namespace
}  // namespace lockstep::checkpoint::manifest_test
