// SPDX-License-Identifier: Apache-2.0
#include "launcher/observe/run_traces.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <system_error>
#include <utility>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "runtime/base/text.h"

namespace lockstep::launcher {
namespace {

namespace fs = std::filesystem;

template <typename Take>
void for_each_entry(const fs::path& folder, Take take) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) take(it->path());
  if (error) throw SystemError("list " + folder.string(), error.value());
}

// `start` is the name that a start's folder has, or would have.
void read_folder(const fs::path& folder, const std::string& start, const std::optional<HostSlots>& ranks,
                 RunTraces& found) {
  for_each_entry(folder, [&](const fs::path& path) {
    const auto file = TraceFile::of_name(start + "/" + path.filename().native());
    if (!file || (ranks && !ranks->has(file->rank)) || !fs::is_regular_file(path)) return;
    try {
      found.traces.push_back({file->start, trace::decode(trace::TraceRing::read_file(path.native()))});
    } catch (const Error& error) {  // damaged, or being replaced by a new start
      found.problems.emplace_back(error.what());
    }
  });
}

// Returns the time of the trace's first event, by the wall clock.
std::int64_t beginning(const RunTrace& trace) {
  const auto& [start, rank] = trace;
  if (!rank.spans.empty()) return rank.spans.front().begin + rank.wall_clock;
  return rank.steps.empty() ? 0 : rank.steps.front().begin + rank.wall_clock;
}

}  // namespace

std::string TraceFile::name() const { return fmt::format("start{}/rank{}.trace", start, rank); }

std::optional<TraceFile> TraceFile::of_name(std::string_view text) {
  std::string_view rest = text;
  const auto take = [&rest](std::string_view before, char after) {
    std::string_view word = take_word(rest, after);
    if (word.starts_with(before)) word.remove_prefix(before.size());
    return static_cast<int>(parse_int(word).value_or(-1));
  };
  const TraceFile file{.start = take("start", '/'), .rank = take("rank", '.')};
  // Another spelling, such as a leading zero, is another name.
  if (file.start < 1 || file.rank < 0 || file.name() != text) return std::nullopt;
  return file;
}

RunTraces read_traces(const fs::path& folder, const std::optional<HostSlots>& ranks) {
  if (!fs::is_directory(folder)) throw InvalidArgument(fmt::format("there is no folder {}", folder.string()));
  RunTraces found;
  read_folder(folder, "start1", ranks, found);
  for_each_entry(folder, [&](const fs::path& path) {
    const std::string start = path.filename().native();
    if (start.starts_with("start") && fs::is_directory(path)) read_folder(path, start, ranks, found);
  });
  if (found.traces.empty()) return found;
  const auto newest = std::ranges::max_element(found.traces, {}, beginning);
  const std::string run_id = newest->rank.identity.run_id;
  std::erase_if(found.traces, [&](const RunTrace& it) { return it.rank.identity.run_id != run_id; });
  std::ranges::sort(found.traces, {}, [](const RunTrace& it) { return std::pair(it.start, it.rank.identity.rank); });
  return found;
}

std::string trace_folder(const std::string& log_dir, const std::string& trace) {
  if (!log_dir.empty()) return log_dir;
  return trace.empty() ? std::string() : trace + ".ranks";
}

}  // namespace lockstep::launcher
