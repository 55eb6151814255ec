// SPDX-License-Identifier: Apache-2.0
#include "launcher/observe/run_traces.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <system_error>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

namespace fs = std::filesystem;

// Returns the number between `before` and `after`; nullopt if the text has another form.
std::optional<int> number_in(std::string_view text, std::string_view before, std::string_view after) {
  if (!text.starts_with(before) || !text.ends_with(after) || text.size() <= before.size() + after.size()) return {};
  const std::string_view digits = text.substr(before.size(), text.size() - before.size() - after.size());
  int number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size() || number < 0) return {};
  return number;
}

template <typename Take>
void for_each_entry(const fs::path& folder, Take take) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) take(it->path());
  if (error) throw SystemError("list " + folder.string(), error.value());
}

void read_folder(const fs::path& folder, int generation, const std::optional<HostSlots>& ranks, RunTraces& found) {
  for_each_entry(folder, [&](const fs::path& file) {
    const auto rank = number_in(file.filename().native(), "rank", ".trace");
    if (!rank || (ranks && !ranks->has(*rank)) || !fs::is_regular_file(file)) return;
    try {
      found.traces.push_back({generation, trace::decode(trace::TraceRing::read_file(file.native()))});
    } catch (const Error& error) {  // damaged, or being replaced by a new start
      found.problems.emplace_back(error.what());
    }
  });
}

// Returns the time of the trace's first event, by the wall clock.
std::int64_t beginning(const RunTrace& trace) {
  const auto& [generation, rank] = trace;
  if (!rank.spans.empty()) return rank.spans.front().begin + rank.wall_clock;
  return rank.steps.empty() ? 0 : rank.steps.front().begin + rank.wall_clock;
}

}  // namespace

RunTraces read_traces(const fs::path& folder, const std::optional<HostSlots>& ranks) {
  if (!fs::is_directory(folder)) throw InvalidArgument(fmt::format("there is no folder {}", folder.string()));
  RunTraces found;
  read_folder(folder, 0, ranks, found);
  for_each_entry(folder, [&](const fs::path& entry) {
    const auto generation = number_in(entry.filename().native(), "generation", "");
    if (generation && fs::is_directory(entry)) read_folder(entry, *generation, ranks, found);
  });
  if (found.traces.empty()) return found;
  const auto newest = std::ranges::max_element(found.traces, {}, beginning);
  const std::string run_id = newest->rank.identity.run_id;
  std::erase_if(found.traces, [&](const RunTrace& it) { return it.rank.identity.run_id != run_id; });
  std::ranges::sort(found.traces, {},
                    [](const RunTrace& it) { return std::pair(it.generation, it.rank.identity.rank); });
  return found;
}

std::string trace_folder(const std::string& log_dir, const std::string& trace) {
  if (!log_dir.empty()) return log_dir;
  return trace.empty() ? std::string() : trace + ".ranks";
}

}  // namespace lockstep::launcher
