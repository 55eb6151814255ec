// SPDX-License-Identifier: Apache-2.0
#include "launcher/observe/job_history.h"

#include <fmt/format.h>

#include <deque>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>

#include "launcher/output/log_folder.h"
#include "runtime/base/printable.h"
#include "runtime/base/regular_file.h"

namespace lockstep::launcher {
namespace {

namespace fs = std::filesystem;

struct Verdict {
  std::string text = "its verdict can't be read";
  std::string outcome = {};
  std::string summary = {};
  std::string run_id = {};  // empty: not known
  std::optional<bool> starts_again = {};
};

Verdict read_verdict(const fs::path& file) {
  Verdict verdict;
  const auto json = nlohmann::json::parse(read_regular(file, std::size_t{1} << 24), nullptr, false);
  if (!json.is_object() || !json.contains("outcome") || !json.contains("summary")) return verdict;
  const auto text = [&](const char* key, const char* otherwise) {
    return json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : otherwise;
  };
  verdict.outcome = text("outcome", "?");
  verdict.summary = text("summary", "?");
  verdict.text = fmt::format("{}: {}", verdict.outcome, verdict.summary);
  verdict.run_id = text("run_id", "");
  if (json.contains("starts_again")) verdict.starts_again = json["starts_again"] == true;
  return verdict;
}

// Parses "TIME WHO: TEXT"; WHO must be the launcher, or a rank whose text is about snapshots.
std::optional<HistoryLine> history_line(const std::string& line) {
  constexpr std::string_view kLauncher = " lockstep run: ";
  const auto space = line.find(' ');
  if (space == std::string::npos) return std::nullopt;
  const std::string_view rest = std::string_view(line).substr(space);
  if (rest.starts_with(kLauncher))
    return HistoryLine{line.substr(0, space), std::string(rest.substr(kLauncher.size()))};
  const auto snapshot = rest.find("snapshots: ");
  if (snapshot == rest.npos || rest.find("[lockstep") == rest.npos) return std::nullopt;
  return HistoryLine{line.substr(0, space), std::string(rest.substr(1))};
}

void read_log(const fs::path& file, std::deque<HistoryLine>& lines) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    auto found = history_line(line);
    if (!found) continue;
    found->text = printable(found->text, 500);
    lines.push_back(std::move(*found));
    if (lines.size() > JobHistory::kMost) lines.pop_front();
  }
}

}  // namespace

JobHistory read_history(const fs::path& folder, std::string_view run_id) {
  JobHistory history;
  for (int start = 1; fs::is_directory(log_folder(folder.native(), start)); ++start) {
    const fs::path file = verdict_file(log_folder(folder.native(), start));
    const bool is_over = fs::is_regular_file(file);
    const Verdict verdict = is_over ? read_verdict(file) : Verdict();
    if (!verdict.run_id.empty() && verdict.run_id != run_id) break;  // an earlier run's in the same folder
    history.is_over = is_over && !verdict.starts_again.value_or(false);
    history.has_failed = verdict.outcome == "failed" || verdict.outcome == "host lost";
    history.outcome = history.is_over ? verdict.outcome : "";
    history.summary = history.is_over ? verdict.summary : "";
    if (is_over) history.verdicts.push_back({.text = fmt::format("start {}: {}", start, verdict.text)});
    if (history.is_over && verdict.starts_again) break;  // later folders are an earlier run's
  }
  std::deque<HistoryLine> lines;
  std::set<fs::path> logs;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (is_job_log(entry.path().filename().native()) && entry.is_regular_file(error)) logs.insert(entry.path());
  }
  for (const fs::path& log : logs) read_log(log, lines);
  history.lines.assign(lines.begin(), lines.end());
  return history;
}

}  // namespace lockstep::launcher
