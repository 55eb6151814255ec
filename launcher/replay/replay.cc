// SPDX-License-Identifier: Apache-2.0
#include "launcher/replay/replay.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <optional>

#include "launcher/base/exit_codes.h"
#include "launcher/base/system.h"
#include "launcher/bisect/first_difference.h"
#include "launcher/snapshots/difference.h"
#include "lockstep/base/error.h"
#include "runtime/base/printable.h"
#include "runtime/checkpoint/snapshot/series.h"

namespace lockstep::launcher {
namespace {

namespace fs = std::filesystem;
using checkpoint::FoundSnapshot;

// The replay's own folder, removed at the end.
class Workplace {
 public:
  Workplace() {
    std::error_code error;
    const fs::path parent = fs::temp_directory_path(error);
    if (error) {
      throw InvalidArgument(
          fmt::format("the folder for temporary files (TMPDIR, or /tmp) can't be used: {}; set TMPDIR "
                      "to a folder with room for the snapshots between A and B",
                      error.message()));
    }
    std::string name = (parent / "lockstep-replay-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw SystemError("mkdtemp " + name, errno);
    folder_ = name;
  }
  ~Workplace() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);  // links are removed, not followed
  }
  Workplace(const Workplace&) = delete;
  Workplace& operator=(const Workplace&) = delete;
  fs::path snapshots() const { return folder_ / "snapshots"; }
  fs::path digests() const { return folder_ / "digests"; }

 private:
  fs::path folder_;
};

void set_variable(const char* name, const std::string& value) {
  if (setenv(name, value.c_str(), 1) != 0) throw SystemError(fmt::format("setenv {}", name), errno);
}

// Without a slash at the end.
fs::path folder_of(const std::string& name) {
  const fs::path path = fs::absolute(name).lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

// The newest whole snapshot of each step in (from, to], by step.
std::map<std::int64_t, fs::path> steps_between(const fs::path& folder, std::int64_t from, std::int64_t to) {
  std::map<std::int64_t, fs::path> steps;
  for (const FoundSnapshot& found : checkpoint::list_snapshots(folder)) {  // newest first
    if (found.step > from && found.step <= to && found.is_saved()) steps.emplace(found.step, found.path);
  }
  return steps;
}

// The first step that both have and that differs, and how it differs.
struct Found {
  std::int64_t equal = 0;  // the last step known to be equal
  std::int64_t compared = 0;
  std::optional<std::int64_t> differs = std::nullopt;
  std::string how = {};
};

Found compare(const FoundSnapshot& a, const FoundSnapshot& b, const fs::path& replayed) {
  auto wanted = steps_between(b.path.parent_path(), a.step, b.step);
  wanted[b.step] = b.path;
  Found found{.equal = a.step};
  for (const auto& [step, path] : steps_between(replayed, a.step, b.step)) {
    const auto other = wanted.find(step);
    if (other == wanted.end()) continue;
    const snapshots::Difference difference = snapshots::compare(other->second, path);
    ++found.compared;
    if (difference.is_equal()) {
      found.equal = step;
      continue;
    }
    found.differs = step;
    found.how = snapshots::as_text(difference);
    break;
  }
  return found;
}

int report(const ReplayOptions& options, const FoundSnapshot& a, const FoundSnapshot& b, const Workplace& place) {
  const Found found = compare(a, b, place.snapshots());
  if (!found.differs && found.equal != b.step) {
    throw InvalidArgument(fmt::format(
        "the program ended before step {}, that of '{}', and saved no snapshot of it; run it with the arguments of the "
        "run that saved '{}', and let its Snapshots::restore() and step() be called",
        b.step, printable(b.path.string()), printable(b.path.string())));
  }
  std::string text;
  if (!found.differs) {
    text = fmt::format("the same bits: steps {} to {} on {} rank(s) come to '{}' ({} compared)\n", a.step, b.step,
                       *options.run.ranks, b.path.string(), found.compared);
  } else {
    text = fmt::format(
        "NOT the same bits: step {} is equal, and step {} differs (A: the run, B: the replay on {} rank(s))\n{}",
        found.equal, *found.differs, *options.run.ranks, found.how);
  }
  write_to_stdout(printable_lines(text));  // the digests may be of another program
  bool have_equal_digests = true;
  if (!options.digests.empty()) {
    std::vector<fs::path> folders(options.digests.begin(), options.digests.end());
    folders.push_back(place.digests());
    const bisect::Recorded recorded = bisect::read_digests(folders);
    const bisect::Comparison comparison = bisect::compare(recorded);
    have_equal_digests = !comparison.difference;
    write_to_stdout(printable_lines(bisect::as_text(recorded, comparison)));
  }
  return found.differs || !have_equal_digests ? 1 : 0;
}

}  // namespace

int replay_command(const ReplayOptions& options, const std::function<int(const RunOptions&)>& run) {
  return exit_code_of("replay", kExitUsage, [&] {
    const FoundSnapshot a = checkpoint::open_snapshot(folder_of(options.from)),
                        b = checkpoint::open_snapshot(folder_of(options.to));
    if (a.step >= b.step) {
      throw InvalidArgument(fmt::format("'{}' is of step {} and '{}' of step {}; give an earlier snapshot first",
                                        printable(options.from), a.step, printable(options.to), b.step));
    }
    const Workplace place;
    fs::create_directory(place.snapshots());
    const fs::path whole = fs::canonical(a.path);
    fs::create_directory_symlink(whole, place.snapshots() / whole.filename());
    set_variable("LOCKSTEP_REPLAY", fmt::format("{}:{}", b.step, place.snapshots().string()));
    // Without --digests the run's own folder of digests must not get more.
    unsetenv("LOCKSTEP_STEP_DIGESTS");
    if (!options.digests.empty()) {
      bisect::read_digests(std::vector<fs::path>(options.digests.begin(), options.digests.end()));  // before the replay
      set_variable("LOCKSTEP_STEP_DIGESTS", place.digests().string());
    }
    const int code = run(options.run);
    // A rank may end while a slower one still takes leave of it: what counts is the snapshot.
    const bool has_come = steps_between(place.snapshots(), a.step, b.step).contains(b.step);
    if (code == 0 || has_come) return report(options, a, b, place);
    throw InvalidArgument(
        fmt::format("the program failed, with exit code {}, before step {}; nothing was compared", code, b.step));
  });
}

}  // namespace lockstep::launcher
