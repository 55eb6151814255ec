// SPDX-License-Identifier: Apache-2.0
// Jobs of the program e2e_training, and what they leave. TRAINING_PROGRAM comes from the build.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>
#include <vector>

#include "tests/e2e/launch.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::e2e {

class TrainingJob : public ::testing::Test {
 protected:
  static constexpr int kSteps = 3000;

  std::string file(const std::string& name) const { return (folder_ / name).string(); }
  // Of the run `name`: its folder and the weights that it ends with.
  Words program(const std::string& name, const std::string& backend = "", int steps = kSteps) const {
    Words words{TRAINING_PROGRAM, file(name), file(name + ".weights"), std::to_string(steps)};
    if (!backend.empty()) words.push_back(backend);
    return words;
  }
  static Words job(int ranks, const Words& program, const Words& flags = {}) {
    return joined(joined(joined({LOCKSTEP_PROGRAM, "run", "-n", std::to_string(ranks)}, flags), {"--"}), program);
  }
  // Runs it to its end: a busy machine takes its time for `steps` steps.
  static Result run_to_end(const Words& command, int steps = kSteps) {
    return testing::run_process({.command = command}, Deadline::after(testing::kPatience * (1 + steps / 1000)));
  }
  // What it ends with undisturbed.
  std::string undisturbed(int ranks, const std::string& backend = "", int steps = kSteps) {
    const Result result = run_to_end(job(ranks, program("undisturbed", backend, steps)), steps);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return bytes_of("undisturbed");
  }
  std::string bytes_of(const std::string& name) const {
    std::ifstream in(file(name + ".weights"), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  bool has_ended(const std::string& name) const { return std::filesystem::exists(file(name + ".weights")); }
  // What `pattern`, with one group, finds.
  static std::vector<std::int64_t> numbers_in(const std::string& text, const std::string& pattern) {
    std::vector<std::int64_t> numbers;
    const std::regex regex(pattern);
    for (auto it = std::sregex_iterator(text.begin(), text.end(), regex); it != std::sregex_iterator(); ++it) {
      numbers.push_back(std::stoll((*it)[1]));
    }
    return numbers;
  }

  const testing::TemporaryFolder folder_;
};

}  // namespace lockstep::e2e
