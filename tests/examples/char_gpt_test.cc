// SPDX-License-Identifier: Apache-2.0
// 02_char_gpt as a program: it learns, saves, and a fresh process writes; bad input is told in a line.
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/safetensors.h"
#include "tests/examples/refusals.h"
#include "tests/support/messages.h"
#include "tests/support/process.h"
#include "tests/support/rank_processes.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::char_gpt_test {
namespace {

namespace fs = std::filesystem;

const std::string kProgram = LOCKSTEP_BIN_DIR "/02_char_gpt";

class CharGptProgram : public ::testing::Test {
 protected:
  void SetUp() override {
    // Three words of the same letters in turn: what comes next depends on more than the letter before.
    std::ofstream text(file("text"));
    for (int i = 0; i < 600; ++i) text << (i % 3 == 0 ? "banana " : i % 3 == 1 ? "cabana " : "abacab\n");
  }

  std::string file(const std::string& name) const { return (folder_ / name).string(); }
  std::vector<std::string> command(const std::vector<std::string>& more, int steps = 120) const {
    std::vector<std::string> all{
        kProgram, "--text",  file("text"),         "--layers", "1",       "--heads", "2",
        "--embd", "32",      "--context",          "16",       "--batch", "8",       "--warmup",
        "5",      "--steps", std::to_string(steps)};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  struct Losses {
    double model = 0;
    double bigram = 0;
  };
  static Losses losses(const std::string& out) {
    std::smatch match;
    const std::regex line("validation loss ([0-9.]+) \\(bigram table ([0-9.]+)\\)\n");
    EXPECT_TRUE(std::regex_search(out, match, line)) << out;
    return match.empty() ? Losses{} : Losses{std::stod(match[1]), std::stod(match[2])};
  }
  std::string bytes_of(const std::string& name) const {
    std::ifstream in(file(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  const TemporaryFolder folder_;
};

TEST_F(CharGptProgram, LearnsOnTwoRanksAndAFreshProcessWrites) {
  RankProcesses job(2, {.command = command({"--out", file("w")}), .environment = {{"LOCKSTEP_PROGRESS", "lines"}}});
  const std::vector<Result> results = job.wait();
  ASSERT_EQ(results[0].exit_code, 0) << results[0].err;
  ASSERT_EQ(results[1].exit_code, 0) << results[1].err;
  EXPECT_EQ(results[1].out, "");
  const Losses seen = losses(results[0].out);
  EXPECT_LT(seen.model, seen.bigram);
  EXPECT_NE(results[0].err.find("step 120/120"), std::string::npos) << results[0].err;
  EXPECT_NE(results[0].err.find("waited"), std::string::npos) << results[0].err;
  EXPECT_EQ(results[1].err.find("step 120/120"), std::string::npos) << "only rank 0 draws";

  const std::vector<std::string> write{kProgram, "--generate", "40", "--load", file("w"), "--prompt", "bana"};
  const Result passage = run(write);
  ASSERT_EQ(passage.exit_code, 0) << passage.err;
  EXPECT_EQ(passage.out.size(), 45u) << passage.out;
  EXPECT_TRUE(passage.out.starts_with("bana")) << passage.out;
  EXPECT_EQ(passage.out.find_first_not_of("abcn \n"), std::string::npos) << passage.out;
  EXPECT_EQ(run(write).out, passage.out) << "equal seeds write equal passages";
}

// In fixed micro-batches, so that the number of ranks counts for nothing either.
TEST_F(CharGptProgram, ShardsOfTheOptimizerChangeNoBitOfTheWeights) {
  std::map<std::string, double> loss_of;
  for (const auto& [name, ranks] : {std::pair{"alone", 1}, std::pair{"whole", 3}, std::pair{"sharded", 3}}) {
    std::vector<std::string> flags{"--out", file(name), "--micro-batches", "4"};
    if (name == std::string("sharded")) flags.emplace_back("--shard");
    RankProcesses job(ranks, {.command = command(flags, 30)});
    const std::vector<Result> results = job.wait();
    for (const Result& result : results) ASSERT_EQ(result.exit_code, 0) << result.err;
    loss_of[name] = losses(results[0].out).model;
  }
  EXPECT_NEAR(loss_of["whole"], loss_of["alone"], 2e-4);
  ASSERT_FALSE(bytes_of("alone").empty());
  EXPECT_EQ(bytes_of("whole"), bytes_of("alone"));
  EXPECT_EQ(bytes_of("sharded"), bytes_of("alone"));
}

// Before ranks meet, and before training.
TEST_F(CharGptProgram, BadTextsFlagsWeightsAndFoldersAreALineEach) {
  folder_.write("empty", "");
  folder_.write("short", "too short");
  const std::vector<float> values(4);
  const std::vector<checkpoint::TensorSource> tensors{{"w", DType::f32, {4}, std::as_bytes(std::span(values))}};
  checkpoint::write_safetensors(file("other"), tensors);
  checkpoint::write_safetensors(file("misfit"), tensors,
                                {{"vocabulary_size", "3"},
                                 {"context", "8"},
                                 {"layers", "1"},
                                 {"heads", "1"},
                                 {"channels", "4"},
                                 {"vocabulary", "6162"}});
  const auto load = [&](const std::string& name) {
    return std::vector<std::string>{"--generate", "10", "--load", file(name)};
  };
  expect_message("examples", "refusals",
                 refusals({kProgram}, {{"--text", file("none")},
                                       {"--text", file("empty")},
                                       {"--text", file("short")},
                                       {"--text", folder_},
                                       {"--fast"},
                                       {"--steps", "0"},
                                       {"--batch", "many"},
                                       {"--dropout", "1"},
                                       {"--lr", "-1"},
                                       {"--embd", "30", "--heads", "4"},
                                       {"--generate", "10"},
                                       {"--load", file("text")},
                                       {"--generate", "1", "--load", file("w"), "--prompt", ""},
                                       load("none"),
                                       load("text"),
                                       load("other"),
                                       load("misfit"),
                                       {"--text", file("text"), "--out", file("none/w")}}));
}

// 1,000 steps of two ranks under the launcher, with snapshots.
class CharGptJob : public CharGptProgram {
 protected:
  // `flags`: the file of weights, then more.
  std::vector<std::string> job(const std::vector<std::string>& flags) const {
    std::vector<std::string> words{LOCKSTEP_BIN_DIR "/lockstep", "run", "-n", "2", "--"};
    const std::vector<std::string> program = command({"--out", file(flags.front())}, 1000);
    words.insert(words.end(), program.begin(), program.end());
    words.insert(words.end(), flags.begin() + 1, flags.end());
    return words;
  }
};

TEST_F(CharGptJob, KilledAndStartedAgainEndsWithTheSameBits) {
  const Result undisturbed = run(job({"undisturbed"}));
  ASSERT_EQ(undisturbed.exit_code, 0) << undisturbed.err;

  const std::vector<std::string> saving{"killed", "--snapshot-dir", file("run7"), "--snapshot-every", "30"};
  {
    Process killed({.command = job(saving)});
    ASSERT_TRUE(killed.await_output("is saved in"));
    killed.send(SIGKILL);  // the launcher; its ranks go with it
    EXPECT_EQ(killed.wait().signal, SIGKILL);
  }
  EXPECT_FALSE(fs::exists(file("killed"))) << "it had ended before it was killed";
  const Result again = run(job(saving));
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_NE(again.err.find("resumes from step "), std::string::npos) << again.err;
  EXPECT_EQ(bytes_of("killed"), bytes_of("undisturbed"));
  EXPECT_EQ(losses(again.out).model, losses(undisturbed.out).model);

  // Once more: there is nothing left to do, and the end is the same.
  const Result nothing = run(job(saving));
  ASSERT_EQ(nothing.exit_code, 0) << nothing.err;
  EXPECT_NE(nothing.err.find("resumes from step 1000"), std::string::npos) << nothing.err;
  EXPECT_EQ(bytes_of("killed"), bytes_of("undisturbed"));
}

}  // namespace
}  // namespace lockstep::testing::char_gpt_test
