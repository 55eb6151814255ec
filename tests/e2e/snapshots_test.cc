// SPDX-License-Identifier: Apache-2.0
// `lockstep snapshots`: what it says of a job's folder, and of two snapshots.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "tests/e2e/launch.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/checkpoint/snapshot/job.h"

namespace lockstep::e2e::snapshots_test {
namespace {

namespace fs = std::filesystem;
using namespace lockstep::checkpoint;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TemporaryFolder;
using Json = nlohmann::json;

Result snapshots(const Words& words, int exit_code = 0) {
  const Result result = testing::run(joined({LOCKSTEP_PROGRAM, "snapshots"}, words));
  EXPECT_EQ(result.exit_code, exit_code) << result.out << result.err;
  return result;
}

Json json_of(const Result& result) {
  EXPECT_EQ(result.err, "");
  Json json = Json::parse(result.out, nullptr, false);
  EXPECT_FALSE(json.is_discarded()) << result.out;
  return json;
}

// Steps 1 and 2 of a job, and where the second is.
fs::path two_steps(const fs::path& folder) {
  record_generation(folder, {.number = 1, .writer = "rank 0 (host n, pid 1)", .time = "2026-11-23T03:00:00Z"});
  save_step(folder, 1, 1);
  save_step(folder, 2, 1);
  return folder / "step-000000000002-g000001";
}

void flip_last_byte(const fs::path& path) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(-1, std::ios::end);
  file.put('\x55');
}

TEST(SnapshotsCommand, ListsWhatAJobCanGoOnFrom) {
  const TemporaryFolder folder;
  two_steps(folder);
  const Result lines = snapshots({folder.string()});
  EXPECT_THAT(lines.out, AllOf(HasSubstr("step"), HasSubstr("224 bytes"), HasSubstr("test"), HasSubstr("whole")));
  EXPECT_EQ(lines_of(lines.out).size(), 3u) << lines.out;
  EXPECT_LT(lines.out.find("\n2 "), lines.out.find("\n1 ")) << "newest first: " << lines.out;

  const Json json = json_of(snapshots({"--json", folder.string()}));
  ASSERT_EQ(json["snapshots"].size(), 2u);
  EXPECT_EQ(json["snapshots"][0]["step"], 2);
  EXPECT_EQ(json["snapshots"][0]["generation"], 1);
  EXPECT_EQ(json["snapshots"][0]["world_size"], 1);
  EXPECT_EQ(json["snapshots"][0]["bytes"], 224);
  EXPECT_EQ(json["snapshots"][0]["reason"], "test");
  EXPECT_EQ(json["snapshots"][0]["state"], "whole");
  EXPECT_EQ(json["generations"][0]["writer"], "rank 0 (host n, pid 1)");

  set_value(list_snapshots(folder.string()).front(), 0.125);
  EXPECT_THAT(snapshots({folder.string()}).out,
              AllOf(HasSubstr("value"), HasSubstr("1           0.125  test"), HasSubstr("1           -      test")));
  const Json valued = json_of(snapshots({"--json", folder.string()}))["snapshots"];
  EXPECT_EQ(valued[0]["value"], 0.125);
  EXPECT_FALSE(valued[1].contains("value"));
}

TEST(SnapshotsCommand, SaysWhyOneIsNotWhole) {
  const TemporaryFolder folder;
  const fs::path newest = two_steps(folder);
  flip_last_byte(newest / "model.safetensors");
  // Sizes fit: only who reads all of it sees that.
  snapshots({folder.string()});
  const Result verified = snapshots({"--verify", folder.string()}, 1);
  EXPECT_THAT(verified.out, AllOf(HasSubstr("damaged: the snapshot's file model.safetensors is damaged"),
                                  HasSubstr("every byte read")));

  fs::remove(newest / "model.safetensors");
  const Result quick = snapshots({folder.string()}, 1);
  EXPECT_THAT(quick.out, HasSubstr("damaged: model.safetensors is missing"));
  snapshots({newest.string()}, 1);  // by itself, too

  fs::remove(newest / "manifest.json");
  record_generation(folder, {.number = 2, .writer = "rank 0 (host m, pid 2)", .time = "later"});
  const Result others = snapshots({folder.string()});
  EXPECT_THAT(others.out, AllOf(HasSubstr("unfinished: "), HasSubstr("fenced: generation 2 (rank 0 (host m, pid 2))")));
}

TEST(SnapshotsCommand, SaysWhatOnlyALaterLockstepReads) {
  const TemporaryFolder folder;
  const fs::path newest = two_steps(folder);
  rewrite_as_later(newest / "manifest.json", "lockstep snapshot");
  for (const std::string& what : {folder.string(), newest.string()}) {
    const Result lines = snapshots({"--verify", what}, 1);
    EXPECT_THAT(lines.out,
                HasSubstr("later: the manifest was written by a later lockstep (format 2; this one reads up to "
                          "1): update lockstep"));
  }
  EXPECT_EQ(json_of(snapshots({"--json", folder.string()}, 1))["snapshots"][0]["state"], "later");
  const Result other = snapshots({"diff", newest.string(), newest.string()}, 2);
  EXPECT_THAT(other.err, HasSubstr("update lockstep"));
}

TEST(SnapshotsCommand, SaysWhatItCanNotLookAt) {
  const TemporaryFolder folder;
  folder.write("file", "text");
  EXPECT_THAT(snapshots({folder.string()}).out, HasSubstr("no snapshots"));
  for (const auto& [words, text] : std::vector<std::pair<Words, std::string>>{
           {{}, "no folder was given"},
           {{""}, "name is empty"},
           {{"a", "b"}, "use lockstep snapshots DIR"},
           {{"diff", "a"}, "use lockstep snapshots DIR"},
           {{(folder / "none").string()}, "is not a folder: No such file or directory"},
           {{(folder / "file").string()}, "is not a folder"},
           {{"diff", folder.string(), folder.string()}, "is not a snapshot"},
           {{"--deep", folder.string()}, "--deep"}}) {
    const Result result = snapshots(words, 2);
    EXPECT_THAT(result.err, AllOf(HasSubstr("lockstep snapshots: "), HasSubstr(text)));
    EXPECT_EQ(result.out, "");
  }
  EXPECT_THAT(snapshots({"--help"}).out, AllOf(HasSubstr("diff A B"), HasSubstr("Exit codes:")));
}

// A snapshot by itself with one tensor, and two values.
fs::path write_one(const fs::path& folder, const std::string& tensor, const std::vector<float>& numbers,
                   std::int64_t steps) {
  fs::create_directories(folder);
  record_generation(folder, {.number = 1, .writer = "w", .time = "t"});
  const TensorSource source{
      .name = tensor, .shape = {static_cast<std::int64_t>(numbers.size())}, .bytes = std::as_bytes(std::span(numbers))};
  const TensorSource same{.name = "same", .shape = {0}, .bytes = {}};
  const std::vector<ItemSource> items{
      {.item = {.name = "model", .type = "Module", .values = {{}}}, .tensors = {source, same}},
      {.item = {.name = "optimizer", .type = "AdamW", .values = {{{"steps", steps}, {"lr", 0.5}}}}, .tensors = {}}};
  write_snapshot(folder, {.step = 1, .generation = 1, .world_size = 1, .time = "t", .writer = "w", .reason = "test"},
                 items);
  return folder / "step-000000000001-g000001";
}

TEST(SnapshotsCommand, SaysWhatTwoDifferInAndByHowMuch) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const TemporaryFolder one, two, three;
  const std::string a = write_one(one / "run", "w", {1, 2, 3, 0, 5}, 4).string();
  const std::string b = write_one(two / "run", "w", {1, 2.5, kNan, -0.0f, 5.25}, 8).string();
  const std::string c = write_one(three / "run", "v", {1, 2, 3, 0, 5}, 4).string();

  const Result same = snapshots({"diff", a, a});
  EXPECT_THAT(same.out, HasSubstr("2 tensors are equal, 0 differ"));
  EXPECT_EQ(json_of(snapshots({"diff", "--json", a, a}))["equal"], true);

  const Result other = snapshots({"diff", a, b}, 1);
  EXPECT_THAT(other.out, AllOf(HasSubstr("model: tensor 'w': 4 of 5 elements differ, by at most 0.5; 1 are NaN"),
                               HasSubstr("optimizer: value steps: 4 in A, 8 in B"), Not(HasSubstr("value lr")),
                               HasSubstr("1 tensors are equal, 1 differ")));
  const Json json = json_of(snapshots({"diff", "--json", a, b}, 1));
  EXPECT_EQ(json["equal"], false);
  EXPECT_EQ(json["tensors"], Json::parse(R"([{"item": "model", "name": "w", "elements": 5, "different": 4, "nan": 1,
                                              "largest": 0.5}])"));
  EXPECT_EQ(json["values"], Json::parse(R"([{"item": "optimizer", "name": "steps", "a": 4, "b": 8}])"));

  const Result renamed = snapshots({"diff", a, c}, 1);
  EXPECT_THAT(renamed.out, AllOf(HasSubstr("tensor 'w' is only in A"), HasSubstr("tensor 'v' is only in B")));

  flip_last_byte(fs::path(b) / "model.safetensors");
  const Result damaged = snapshots({"diff", a, b}, 2);
  EXPECT_THAT(damaged.err, HasSubstr("model.safetensors is damaged"));
}

TEST(SnapshotsCommand, WritesNothingOutsideOfItsFolderForAManifestThatSaysSo) {
  const TemporaryFolder folder;
  fs::create_directories(folder / "run");
  const fs::path snapshot = two_steps(folder / "run"), manifest = snapshot / "manifest.json";
  folder.write("model.safetensors", "the user's");
  constexpr SealedFormat kFormat{.name = "lockstep snapshot", .version = 1};
  const Json good = unseal(read_text(manifest), kFormat, "it");
  for (const std::string& name : {std::string("../model"), (folder / "model").string()}) {
    Json forged = good;
    forged["items"][0]["name"] = name;
    write_text(manifest, seal(forged, kFormat));
    const Result result = snapshots({"export", snapshot.string(), (folder / "out").string()}, 2);
    EXPECT_THAT(result.err, HasSubstr("is not an item's name"));
    std::ifstream users(folder / "model.safetensors");
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(users), {}), "the user's");
  }
  Json forged = good;
  forged["world_size"] = 0;
  forged["items"][0] = {{"name", "model"},           {"type", "Module"},        {"kind", "per_rank"},
                        {"at_another_size", "drop"}, {"values", Json::array()}, {"tensors", "model.safetensors"}};
  write_text(manifest, seal(forged, kFormat));
  snapshots({"export", snapshot.string(), (folder / "out").string()}, 2);
  forged = good;
  forged["reason"] = "x\n9     2026-11-23T03:00:00Z  224 bytes  1  1  -  test  whole";
  write_text(manifest, seal(forged, kFormat));
  EXPECT_EQ(lines_of(snapshots({(folder / "run").string()}).out).size(), 3u);
}

TEST(SnapshotsCommand, ListsComparesAndExportsWhatRanksHaveInShares) {
  const TemporaryFolder folder;
  const std::string run = (folder / "run").string(), out = (folder / "out").string();
  for (const char* disk : {"run", "other"}) {
    fs::create_directories(folder / disk);
    record_generation(folder / disk, {.number = 1, .writer = kWriter, .time = "2026-11-23T03:00:00Z"});
  }
  save_shards({run, run}, 1, 1);
  save_shards({run, folder / "other"}, 2, 1);
  const Result listed = snapshots({"--verify", run});
  EXPECT_THAT(listed.out, AllOf(HasSubstr("whole, every byte read"),
                                HasSubstr("partial: optimizer.r0001.safetensors is missing, which rank 1 wrote")));
  const std::string whole = run + "/step-000000000001-g000001", part = run + "/step-000000000002-g000001";
  snapshots({"diff", whole, whole});

  const Result written = snapshots({"export", whole, out});
  EXPECT_EQ(written.out, out + "/model.safetensors\n" + out + "/optimizer.safetensors\n");
  const SafetensorsFile file(out + "/optimizer.safetensors");
  EXPECT_EQ(file.find("w").shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(file.metadata().at("type"), "AdamW");
  EXPECT_EQ(Json::parse(file.metadata().at("values"))["steps"], 1);

  for (const auto& [words, text] :
       std::vector<std::pair<Words, std::string>>{{{"export", whole, out}, "is not empty"},
                                                  {{"export", part, out + "2"}, "is in parts"},
                                                  {{"export", whole}, "use lockstep snapshots DIR"},
                                                  {{"--json", "export", whole, out + "2"}, "export takes no flags"}}) {
    const Result result = snapshots(words, 2);
    EXPECT_THAT(result.err, HasSubstr(text));
  }
  // The same state whole is equal.
  const std::string alone = write_one(folder / "alone", "w", {1, 1, 1, 1}, 1).string();
  EXPECT_THAT(snapshots({"diff", whole, alone}, 1).out, HasSubstr("optimizer: tensor 'w' is only in A"));
}

}  // namespace
}  // namespace lockstep::e2e::snapshots_test
