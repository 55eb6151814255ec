// SPDX-License-Identifier: Apache-2.0
// A job under `lockstep run`, and how it ends: by the exit code, by verdict.json and by the launcher's last line, which
// must agree. LOCKSTEP_PROGRAM comes from the build.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "tests/e2e/launch.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::e2e {

// Returns the run id that `lockstep ps` shows for this launcher; empty if `ps` does not list it.
inline std::string id_of(const Process& launcher) {
  for (const auto& one : nlohmann::json::parse(testing::run({LOCKSTEP_PROGRAM, "ps", "--json"}).out)) {
    if (one["pid"] == launcher.pid()) return one["run_id"];
  }
  return "";
}

// The outcome that a test expects. The fields after `rank` are compared only if they are set.
struct Verdict {
  int exit_code = 0;
  int rank = -1;               // that failed first; -1: none is blamed
  std::string how = {};        // the beginning of what the last line says of the rank
  pid_t pid = 0;               // the rank's
  std::string signal = {};     // that killed the rank
  std::string host = {};       // the rank's
  std::string lost_host = {};  // that was lost first
};

// `log_dir` is the job's --log-dir, `said` what one of its launchers has written to stderr. Returns verdict.json.
inline nlohmann::json expect_verdict(const std::filesystem::path& log_dir, const std::string& said,
                                     const Verdict& wanted) {
  std::ifstream file(log_dir / "verdict.json");
  const auto verdict = nlohmann::json::parse(file, nullptr, false);
  EXPECT_TRUE(verdict.is_object()) << said;
  if (!verdict.is_object()) return verdict;
  SCOPED_TRACE(said);
  EXPECT_EQ(verdict["exit_code"], wanted.exit_code);
  EXPECT_EQ(verdict["outcome"], wanted.exit_code == 0 ? "finished" : wanted.lost_host.empty() ? "failed" : "host lost");
  const auto summary = verdict["summary"].get<std::string>();
  if (wanted.exit_code != 0) {
    EXPECT_TRUE(contains("\n" + said, "\nlockstep run: " + summary)) << summary;
  }
  const auto& first = verdict["first_failure"];
  const std::string blamed = "lockstep run: rank " + std::to_string(wanted.rank) + " ";
  for (const auto& line : lines_of(said)) {
    if (line.starts_with("lockstep run: rank ")) {
      EXPECT_TRUE(line.starts_with(blamed)) << line;
    }
  }
  if (!wanted.lost_host.empty()) {
    EXPECT_EQ(verdict["lost_host"]["host"], wanted.lost_host);
  }
  if (wanted.rank < 0) {
    EXPECT_FALSE(contains(summary, "failed first")) << summary;
    return verdict;
  }
  EXPECT_TRUE(first.is_object() && first["rank"] == wanted.rank) << first;
  const std::string failed = "rank " + std::to_string(wanted.rank) + " failed first: it " + wanted.how;
  EXPECT_TRUE(summary.starts_with(failed)) << summary;
  if (wanted.pid != 0) {
    EXPECT_EQ(first["pid"], wanted.pid);
  }
  if (!wanted.signal.empty()) {
    EXPECT_EQ(first["signal"], wanted.signal);
  }
  if (!wanted.host.empty()) {
    EXPECT_EQ(first["host"], wanted.host);
  }
  return verdict;
}

// The first rank that `word` of another one names with its process.
inline void expect_blame(const std::string& word, int rank, pid_t pid) {
  const auto named = word.find(" (host ");
  const auto begin = word.rfind("rank ", named);
  ASSERT_TRUE(named != std::string::npos && begin != std::string::npos) << word;
  EXPECT_EQ(word.substr(begin, named - begin), "rank " + std::to_string(rank)) << word;
  EXPECT_TRUE(contains(word, ", pid " + std::to_string(pid) + ")")) << word;
}

// `lockstep run -n RANKS FLAGS -- PROGRAM`, whose output is shown here too.
class Job {
 public:
  Job(int ranks, const Words& program, const Words& flags = {}, Variables environment = {})
      : launcher_({.command = joined(joined({LOCKSTEP_PROGRAM, "run", "-n", std::to_string(ranks), "--log-dir",
                                             folder_.native(), "--tee"},
                                            flags),
                                     joined({"--"}, program)),
                   .environment = std::move(environment)}) {}

  Process* operator->() { return &launcher_; }
  // Waits for its end, which must be the one that is wanted. Returns verdict.json.
  nlohmann::json expect(const Verdict& wanted) {
    result_ = launcher_.wait();
    EXPECT_EQ(result_.exit_code, wanted.exit_code) << result_.err;
    return expect_verdict(folder_, result_.err, wanted);
  }
  // Returns the launcher's output and exit code. Call it after expect().
  const Result& result() const { return result_; }
  const std::filesystem::path& folder() const { return folder_; }

 private:
  const testing::TemporaryFolder folder_;
  Process launcher_;
  Result result_;
};

}  // namespace lockstep::e2e
