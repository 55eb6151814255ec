// SPDX-License-Identifier: Apache-2.0
// 05_libtorch_gpt2 as a program: the same losses at any number of ranks, from token files and texts; stopped and
// resumed it ends as one that was not; wrong input is told in a line.
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include "tests/examples/refusals.h"
#include "tests/support/messages.h"
#include "tests/support/process.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::gpt2_test {
namespace {

const std::string kLauncher = LOCKSTEP_BIN_DIR "/lockstep";
const std::string kProgram = LOCKSTEP_BIN_DIR "/05_libtorch_gpt2";

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A token file as llm.c writes them.
std::string token_file(const std::vector<std::uint16_t>& tokens, std::int32_t version = 1,
                       std::int32_t magic = 20240520) {
  std::vector<std::int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = static_cast<std::int32_t>(tokens.size());
  std::string text(reinterpret_cast<const char*>(header.data()), 1024);
  text.append(reinterpret_cast<const char*>(tokens.data()), tokens.size() * 2);
  return text;
}

// Tokens that follow each other in a cycle, beginning with `first`: easy to learn.
std::vector<std::uint16_t> cycle(std::size_t count, std::uint16_t first, int period = 7) {
  std::vector<std::uint16_t> tokens(count);
  for (std::size_t i = 0; i < count; ++i) tokens[i] = static_cast<std::uint16_t>(first + i % period);
  return tokens;
}

class Gpt2Program : public ::testing::Test {
 protected:
  Gpt2Program() {
    std::string text;
    for (int i = 0; i < 500; ++i) text += i % 3 == 0 ? "banana " : i % 3 == 1 ? "cabana " : "abacab\n";
    text_ = folder_.write("text", text);
  }
  std::string file(const std::string& name) const { return (folder_ / name).string(); }
  // `ranks` 0: without the launcher. Rows of 16 tokens, no sample.
  std::vector<std::string> command(int ranks, const std::vector<std::string>& more) const {
    std::vector<std::string> all;
    if (ranks > 0) all = {kLauncher, "run", "-n", std::to_string(ranks), "--"};
    all.insert(all.end(), {kProgram, "--length", "16", "--sample", "0", "--log-every", "1"});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  // The loss of each step, and, behind the last step, that of the validation.
  static std::map<int, double> losses(const Result& result) {
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    std::map<int, double> found;
    const std::regex line("step ([0-9]+): (validation )?loss ([0-9.]+)");
    for (const std::string& text : {result.err, result.out}) {
      for (auto it = std::sregex_iterator(text.begin(), text.end(), line); it != std::sregex_iterator(); ++it) {
        const int step = std::stoi((*it)[1]);
        found[(*it)[2].matched ? 1000 + step : step] = std::stod((*it)[3]);
      }
    }
    return found;
  }
  void expect_same_losses(const std::vector<std::string>& more, std::size_t count) const {
    const std::map<int, double> alone = losses(run(command(0, more)));
    ASSERT_EQ(alone.size(), count);
    EXPECT_LT(alone.rbegin()->second, 0.96 * alone.begin()->second) << "nothing was learned";
    for (const int ranks : {1, 2, 3}) {
      const std::map<int, double> together = losses(run(command(ranks, more)));
      ASSERT_EQ(together.size(), count) << ranks << " ranks";
      for (const auto& [step, loss] : alone) {
        EXPECT_NEAR(together.at(step), loss, 2e-5 * loss) << "step " << step << " at " << ranks << " ranks";
      }
    }
  }
  const TemporaryFolder folder_;
  std::string text_;
};

// 8 rows of a step over 3 ranks are 3, 3 and 2, which are micro-batches of 2 and 1, and of 2.
TEST_F(Gpt2Program, HasTheLossesOfOneProcessAtAnyNumberOfRanks) {
  expect_same_losses({"--data", text_, "--batch-tokens", "128", "--rows", "2", "--steps", "15", "--eval-every", "10"},
                     17);
}

// One row of a step over 2 and 3 ranks: there are ranks that have none, in validation too.
TEST_F(Gpt2Program, RanksWithoutRowsChangeNothing) {
  folder_.write("short", std::string(16 * 20 + 1, 'a'));
  expect_same_losses({"--data", file("short"), "--batch-tokens", "16", "--rows", "1", "--steps", "12", "--warmup", "1"},
                     13);
}

TEST_F(Gpt2Program, ReadsTokenFilesOneBehindTheOther) {
  folder_.write("train_0.bin", token_file(cycle(400, 50000)));
  folder_.write("train_1.bin", token_file(cycle(100, 300)));
  folder_.write("val.bin", token_file(cycle(50, 50000)));
  std::vector<std::string> flags{"--batch-tokens", "64", "--rows", "1", "--steps", "4", "--warmup", "1"};
  flags.insert(flags.end(), {"--data", file("train_0.bin"), file("train_1.bin"), "--validation", file("val.bin")});
  expect_same_losses(flags, 5);
  const Result result = run(command(0, flags));
  // 399 and 99 targets are 24 and 6 rows.
  EXPECT_NE(result.err.find("30 rows of 16 tokens to train on, 3 held out"), std::string::npos) << result.err;
}

TEST_F(Gpt2Program, StoppedAndResumedItHasTheBitsOfAnUndisturbedRun) {
  const auto job = [&](const std::string& name) {
    return command(2, {"--data", text_, "--batch-tokens", "128", "--rows", "4", "--steps", "200", "--out",
                       file(name + ".safetensors"), "--snapshot-dir", file(name), "--snapshot-every", "50"});
  };
  const Result undisturbed = run(job("undisturbed"));
  ASSERT_EQ(undisturbed.exit_code, 0) << undisturbed.err;
  // An epoch is 24 steps; these are within the first one, and within a later one.
  for (const char* moment : {"step 3: ", "step 60: "}) {
    Process asked({.command = job("stopped")});
    ASSERT_TRUE(asked.await_output(moment));
    asked.send(SIGTERM);
    const Result result = asked.wait();
    ASSERT_EQ(result.exit_code, 75) << result.err;
    EXPECT_EQ(result.err.find("step 200: "), std::string::npos) << "it had ended before it was asked";
  }
  const Result resumed = run(job("stopped"));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(resumed.err.find("step 60: "), std::string::npos) << "it began anew: " << resumed.err;
  EXPECT_EQ(resumed.out, undisturbed.out);
  EXPECT_EQ(bytes_of(file("stopped.safetensors")), bytes_of(file("undisturbed.safetensors")));
  const Result compared = run({kLauncher, "snapshots", "diff", file("undisturbed") + "/step-000000000200-g000001",
                               file("stopped") + "/step-000000000200-g000003"});
  EXPECT_EQ(compared.exit_code, 0) << compared.out << compared.err;
}

TEST_F(Gpt2Program, WhatItWroteItReads) {
  const std::vector<std::string> train{"--data", text_, "--batch-tokens", "128", "--steps", "20", "--out", file("out")};
  const double trained = losses(run(command(2, train))).at(1020);
  const double read = losses(run(command(1, {"--data", text_, "--steps", "0", "--weights", file("out")}))).at(1000);
  EXPECT_NEAR(read, trained, 1e-5 * trained);
}

TEST_F(Gpt2Program, SamplesTheSameTextFromOneSeed) {
  const auto sample = [&](const std::string& seed) {
    const Result result = run({kProgram, "--data", text_, "--steps", "0", "--sample", "40", "--seed", seed, "--length",
                               "16", "--batch-tokens", "128"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out.substr(result.out.find('\n') + 1);
  };
  const std::string text = sample("5");
  EXPECT_EQ(text.size(), 41u);
  EXPECT_EQ(sample("5"), text);
  EXPECT_NE(sample("6"), text);
}

TEST_F(Gpt2Program, Bf16LearnsAsFloat32Does) {
  const auto last = [&](const std::string& dtype) {
    return losses(run(command(2, {"--data", text_, "--batch-tokens", "128", "--steps", "20", "--dtype", dtype})))
        .at(20);
  };
  const double exact = last("float32");
  const double rounded = last("bf16");
  EXPECT_NEAR(rounded, exact, 0.05 * exact);
  EXPECT_NE(rounded, exact) << "it computed in float32";
}

TEST_F(Gpt2Program, ShowsWhatShareOfTheGpuIsUsed) {
  const Result result =
      run(command(1, {"--data", text_, "--batch-tokens", "128", "--steps", "2", "--peak-tflops", "0.001"}));
  EXPECT_TRUE(std::regex_search(result.err, std::regex("step 2: loss .* tokens/s  MFU [0-9.]+ %"))) << result.err;
}

TEST_F(Gpt2Program, RefusesFilesThatAreNoneAndFlagsThatDoNotFit) {
  const std::string whole = token_file(cycle(1000, 5));
  folder_.write("empty", "");
  folder_.write("short", "too short");
  folder_.write("text.bin", "No tokens, but words.");
  folder_.write("cut.bin", whole.substr(0, whole.size() - 3));
  folder_.write("new.bin", token_file(cycle(1000, 5), 7));
  folder_.write("large.bin", token_file(cycle(1000, 50300)));
  folder_.write("tokens.bin", whole);
  const std::string page =
      refusals(command(0, {}), {{"--data", file("nowhere")},
                                {"--data", folder_},
                                {"--data", file("empty")},
                                {"--data", file("text.bin")},
                                {"--data", file("cut.bin")},
                                {"--data", file("new.bin")},
                                {"--data", file("large.bin"), "--batch-tokens", "16"},
                                {"--data", file("tokens.bin"), text_},
                                {"--data", text_, "--validation", file("tokens.bin"), "--batch-tokens", "16"},
                                {"--data", file("short")},
                                {"--size", "gpt3"},
                                {"--data", text_, "--batch-tokens", "100"},
                                {"--data", text_, "--batch-tokens", "65536"},
                                {"--data", text_, "--rows", "0"},
                                {"--dtype", "fp8"},
                                {"--colour", "red"},
                                {"--data", text_, "--batch-tokens", "16", "--weights", file("nowhere")}});
  expect_message("examples", "refusals", page + refusals({kProgram}, {{"--length", "65"}}));
  const Result help = run({kProgram, "--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_NE(help.out.find("gpt2-xl (1558M)"), std::string::npos) << help.out;
}

}  // namespace
}  // namespace lockstep::testing::gpt2_test
