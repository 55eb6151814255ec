// SPDX-License-Identifier: Apache-2.0
// 02_char_gpt as a program: it learns, saves, and a fresh process writes; bad input is told in a line.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
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
  for (const auto& [name, ranks] : {std::pair{"alone", 1}, std::pair{"whole", 3}, std::pair{"sharded", 3}}) {
    std::vector<std::string> flags{"--out", file(name), "--micro-batches", "4"};
    if (name == std::string("sharded")) flags.emplace_back("--shard");
    RankProcesses job(ranks, {.command = command(flags, 30)});
    for (const Result& result : job.wait()) ASSERT_EQ(result.exit_code, 0) << result.err;
  }
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
  std::vector<std::string> job(const std::vector<std::string>& flags, int restarts = 0) const {
    // A rank says its pid before it becomes the program.
    std::vector<std::string> words{LOCKSTEP_BIN_DIR "/lockstep",
                                   "run",
                                   "-n",
                                   "2",
                                   "--max-restarts",
                                   std::to_string(restarts),
                                   "--",
                                   "sh",
                                   "-c",
                                   "echo pid of rank $RANK: $$ >&2; exec \"$@\"",
                                   "sh"};
    const std::vector<std::string> program = command({"--out", file(flags.front())}, 1000);
    words.insert(words.end(), program.begin(), program.end());
    words.insert(words.end(), flags.begin() + 1, flags.end());
    return words;
  }
  // The number in the first place of `text` where `pattern` has its group.
  static std::int64_t number_in(const std::string& text, const std::string& pattern) {
    std::smatch match;
    EXPECT_TRUE(std::regex_search(text, match, std::regex(pattern))) << pattern << " in " << text;
    return match.empty() ? -1 : std::stoll(match[1]);
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

// Started again by hand, it resumes from the last step that the survivor has saved; in shares of the optimizer, of
// which a survivor has only its own, the job itself starts again and does the steps since the last snapshot again.
TEST_F(CharGptJob, WhoseRankIsKilledEndsWithTheSameBits) {
  for (const bool is_sharded : {false, true}) {
    const std::string undisturbed = is_sharded ? "undisturbed in shares" : "undisturbed";
    std::vector<std::string> more;
    if (is_sharded) more.emplace_back("--shard");
    const auto flags = [&](std::vector<std::string> first) {
      first.insert(first.end(), more.begin(), more.end());
      return first;
    };
    ASSERT_EQ(run(job(flags({undisturbed}))).exit_code, 0);
    for (const int dead : {0, 1}) {
      const std::string name = "killed" + std::to_string(dead) + (is_sharded ? " in shares" : "");
      const auto saving = flags({name, "--snapshot-dir", file("of_" + name), "--snapshot-every", "30"});
      Process hurt({.command = job(saving, is_sharded ? 1 : 0)});
      ASSERT_TRUE(hurt.await_output("is saved in"));
      const auto pid = number_in(hurt.err(), "pid of rank " + std::to_string(dead) + ": ([0-9]+)");
      ASSERT_GT(pid, 0);
      ::kill(static_cast<pid_t>(pid), SIGKILL);
      Result result = hurt.wait();
      EXPECT_EQ(result.exit_code, is_sharded ? 0 : 128 + SIGKILL) << result.err;
      std::int64_t saved = 0;
      if (!is_sharded) {
        EXPECT_FALSE(fs::exists(file(name))) << "it had ended before a rank was killed";
        saved = number_in(result.err, "step ([0-9]+), the last that rank " + std::to_string(1 - dead));
        result = run(job(saving));
        ASSERT_EQ(result.exit_code, 0) << result.err;
      }
      const auto step = number_in(result.err, "resumes from step ([0-9]+)");
      EXPECT_TRUE(is_sharded ? step >= 30 && step % 30 == 0 : step == saved) << step;
      EXPECT_EQ(bytes_of(name), bytes_of(undisturbed));
    }
  }
}

}  // namespace
}  // namespace lockstep::testing::char_gpt_test
