// SPDX-License-Identifier: Apache-2.0
#include "launcher/client/top.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "launcher/base/amounts.h"
#include "launcher/base/columns.h"
#include "launcher/base/signals.h"
#include "launcher/base/system.h"
#include "launcher/client/gpu_use.h"
#include "launcher/process/process_table.h"
#include "lockstep/base/deadline.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "runtime/base/io.h"
#include "runtime/base/terminal.h"
#include "runtime/base/text.h"
#include "runtime/trace/step_summary.h"

namespace lockstep::launcher {
namespace {

// Orange and blue, which most colour-blind people can tell apart; marks and words say the same.
constexpr const char* kFailing = "\x1b[1;38;5;208m";
constexpr const char* kSlow = "\x1b[1;38;5;39m";
constexpr const char* kPlain = "\x1b[0m";

constexpr const char* kHint = "q: quit  ?: help\n";
constexpr std::string_view kKeys =
    "q: quit  ?: hide this  any other key: update now\n"
    "!: failed, silent, lost or left  *: the others wait for this rank\n"
    "WAITED: for others  HIDDEN: communication in backward  OPTSTATE: optimizer state\n"
    "DATA FWD BWD OPTIM OTHER: parts of a step's TIME  AGO: since it started\n";

double share_of(const ReportedRank& rank, Phase phase) {
  return rank.shares.empty() ? 0 : rank.shares[static_cast<std::size_t>(phase)];
}

std::string percent(const ReportedRank& rank, std::initializer_list<Phase> phases) {
  if (rank.shares.empty()) return "-";
  double share = 0;
  for (const Phase phase : phases) share += share_of(rank, phase);
  return fmt::format("{:.0f}%", 100 * share);
}

// A launcher may send any number, such as infinity.
std::chrono::nanoseconds nanoseconds(double seconds) {
  return std::chrono::nanoseconds(std::llround(1e9 * (seconds < 9e9 ? std::max(seconds, -9e9) : 9e9)));
}

std::string duration(double seconds) { return trace::format_duration(nanoseconds(seconds)); }

std::string memory(double bytes) {
  if (bytes <= 0) return "-";
  const double mebibytes = bytes / (1 << 20);
  return mebibytes < 1024 ? fmt::format("{:.0f}M", mebibytes) : fmt::format("{:.1f}G", mebibytes / 1024);
}

bool has_gpu(const ReportedRank& rank) { return rank.gpu_use || rank.gpu_memory_bytes; }

// Returns "87% 12.3G".
std::string gpu_of(const ReportedRank& rank) {
  if (!has_gpu(rank)) return "-";
  return fmt::format("{} {}", rank.gpu_use ? fmt::format("{:.0f}%", 100 * *rank.gpu_use) : "-",
                     memory(rank.gpu_memory_bytes.value_or(0)));
}

// Returns a process's memory, and its part of what it shares with others: a rank's workers share most with it.
double proportional_bytes(pid_t pid) {
  const std::string text = read_kernel_file(fmt::format("/proc/{}/smaps_rollup", pid));
  const auto at = text.find("\nPss:");
  if (at == text.npos) return 0;
  std::string_view rest = std::string_view(text).substr(text.find_first_of("0123456789", at));
  return 1024.0 * static_cast<double>(parse_int(take_word(rest)).value_or(0));
}

bool is_in_no_group(const ReportedRank& rank) { return rank.cpu_s.has_value(); }

bool is_well(const ReportedRank& rank) {
  return rank.state == "training" || rank.state == "starting" || is_in_no_group(rank);
}

std::vector<std::string> row_of_rank(const ReportedRank& rank, bool is_slow) {
  std::vector<std::string> row = {fmt::format("{}{}", rank.rank,
                                              !is_well(rank) ? " !"
                                              : is_slow      ? " *"
                                                             : ""),
                                  rank.host,
                                  rank.state,
                                  rank.step < 0 ? "-" : fmt::format("{}", rank.step),
                                  rank.step_s > 0 ? duration(rank.step_s) : "-",
                                  percent(rank, {Phase::waited}),
                                  percent(rank, {Phase::hidden}),
                                  percent(rank, {Phase::data}),
                                  percent(rank, {Phase::forward}),
                                  percent(rank, {Phase::backward}),
                                  percent(rank, {Phase::optimizer}),
                                  percent(rank, {Phase::snapshot, Phase::evaluation, Phase::other})};
  for (const double bytes : rank.held_bytes) row.push_back(memory(bytes));
  row.push_back(memory(rank.resident_bytes));
  row.push_back(rank.cpu_s ? fmt::format("{:.1f} s", *rank.cpu_s) : "-");
  row.push_back(gpu_of(rank));
  row.push_back(fmt::format("{}", rank.pid));
  row.push_back(rank.collectives == 0 ? "-" : describe_collective(rank));
  return row;
}

// The share of the step that the rank spent on its own work, as far as the phases tell.
double busy(const ReportedRank& rank) { return 1 - share_of(rank, Phase::waited) - share_of(rank, Phase::hidden); }

std::string describe_finding(const trace::Finding& finding, const LiveReport& report) {
  const auto others = std::count_if(report.ranks.begin(), report.ranks.end(),
                                    [](const ReportedRank& rank) { return rank.wrong_steps > 0; });
  return trace::describe(finding) +
         (others > 1 ? fmt::format("; by now {} have had some", count_of(others, "rank")) : "");
}

std::vector<std::string> heading(const LiveReport& report) {
  const RunFacts& facts = report.facts;
  std::vector<std::string> lines = {fmt::format("{}  {} on {}, start {}, {:.0f} s: {}", facts.run_id,
                                                count_of(facts.world_size, "rank"), count_of(facts.hosts, "host"),
                                                facts.start, static_cast<double>(facts.age_ms) / 1000, facts.command)};
  const auto fastest = std::ranges::max_element(report.ranks, {}, &ReportedRank::step);
  const auto others = std::ranges::count_if(report.ranks, is_in_no_group);
  if (others == std::ssize(report.ranks)) {
    lines.emplace_back("no rank has reported yet; a rank reports within a second of lockstep's init_process_group");
  } else if (fastest->step_s <= 0) {
    lines.push_back(fmt::format("{} of {} ranks are here; no rates before the second step",
                                std::ssize(report.ranks) - others, facts.world_size));
  } else {
    std::string line = fmt::format("step {}, ", fastest->step);
    if (fastest->left_s) line += trace::format_left(nanoseconds(*fastest->left_s)) + " left, ";
    line += duration(fastest->step_s) + " each";
    if (fastest->rows_per_s > 0) line += fmt::format(", {:.0f} samples/s", fastest->rows_per_s);
    if (fastest->loss) line += fmt::format(", loss {:.4g}", *fastest->loss);
    if (fastest->equal_in >= 0) line += fmt::format(", replicas equal in step {}", fastest->equal_in);
    if (fastest->snapshot_age_s) line += fmt::format(", snapshot {} ago", duration(*fastest->snapshot_age_s));
    lines.push_back(std::move(line));
  }
  std::string scalars;
  for (const auto& [name, step, value] : report.scalars) {
    if (name != "loss") scalars += fmt::format("{}{} {:.4g} (step {})", scalars.empty() ? "" : ", ", name, value, step);
  }
  if (!scalars.empty()) lines.push_back(std::move(scalars));
  if (!report.straggler_text.empty()) lines.push_back(report.straggler_text);
  if (const auto finding = first_finding(report)) lines.push_back(describe_finding(*finding, report));
  return lines;
}

using Rows = std::vector<std::vector<std::string>>;

void remove_column(Rows& rows, std::string_view name) {
  const auto column = std::ranges::find(rows[0], name) - rows[0].begin();
  if (column == std::ssize(rows[0])) return;
  for (auto& row : rows) row.erase(row.begin() + column);
}

// Removes columns, the least needed first, until the widest row fits into `room`; 0: `room` is unlimited.
void narrow(Rows& rows, std::size_t room, bool has_one_host) {
  for (const std::string_view name : {"LAST COLLECTIVE", has_one_host ? "HOST" : "", "OTHER", "OPTIM", "HIDDEN",
                                      "WEIGHTS", "GRADS", "OPTSTATE", "BWD", "FWD", "HOST", "DATA", "TIME", "WAITED"}) {
    const bool fits = std::ranges::all_of(in_columns(rows), [&](const auto& line) { return line.size() <= room; });
    if (room == 0 || fits) return;
    remove_column(rows, name);
  }
}

std::string cut(std::string_view line, std::size_t columns) {
  return std::string(columns > 0 ? first_columns(line, columns) : line);
}

std::string coloured(const std::string& line, const char* colour) {
  return fmt::format("{}{}{}", colour, line, kPlain);
}

std::optional<Screen> terminal() {
  winsize size{};
  if (!can_draw_on(STDOUT_FILENO) || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return std::nullopt;
  const bool has_colours = Environment::of_process().get("NO_COLOR").value_or("").empty();
  return Screen{.columns = size.ws_col, .rows = size.ws_row, .has_colours = has_colours};
}

// Replaces the text on the screen, which is cleared first: after a line of full width the cursor is still on its last
// letter. The last line has no newline, which would scroll a full screen.
void redraw(std::string_view text) {
  text.remove_suffix(1);
  write_to_stdout(fmt::format("\x1b[H\x1b[J{}", text));
}

// Delivers keys at once and unechoed for the lifetime of this object, if this process is the terminal's foreground job.
// A background job that reads from the terminal, or configures it, would be stopped, so each call checks whether this
// process is one.
class Keys {
 public:
  Keys() {
    if (!is_in_foreground() || tcgetattr(STDIN_FILENO, &before_) != 0) return;
    termios now = before_;
    now.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    now.c_cc[VMIN] = now.c_cc[VTIME] = 0;  // another process may have read the bytes that poll() saw
    if (tcsetattr(STDIN_FILENO, TCSANOW, &now) == 0) fd_ = STDIN_FILENO;
  }
  ~Keys() {
    if (has_any() && is_in_foreground()) tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  Keys(const Keys&) = delete;
  Keys& operator=(const Keys&) = delete;

  bool has_any() const { return fd_ >= 0; }
  // Waits for a key for at most `time`. Returns 'q' for a signal that asks to end, and if the terminal is gone; 0 if no
  // key came.
  char await(Signals& signals, std::chrono::milliseconds time) const {
    const auto deadline = Deadline::after(time);
    do {
      if (signals.take_end()) return 'q';
      pollfd entries[] = {{signals.fd(), POLLIN, 0}, {is_in_foreground() ? fd_ : -1, POLLIN, 0}};
      uninterrupted([&] { return poll(entries, 2, deadline.poll_timeout_ms()); });
      char key = 'q';
      if (entries[1].revents == 0 || !is_in_foreground()) continue;
      if (read(fd_, &key, 1) == 1 || (entries[1].revents & ~POLLIN) != 0) return key;
    } while (!deadline.expired());
    return 0;
  }

 private:
  static bool is_in_foreground() { return tcgetpgrp(STDIN_FILENO) == getpgrp(); }

  int fd_ = -1;  // -1: this process has no terminal
  termios before_{};
};

}  // namespace

std::string as_screen(const LiveReport& report, const Screen& screen) {
  std::vector<const ReportedRank*> ranks;
  for (const ReportedRank& rank : report.ranks) ranks.push_back(&rank);
  const auto lines = heading(report);
  std::string_view keys = screen.shows_keys ? kKeys : screen.has_keys ? kHint : std::string_view();
  const std::size_t others = lines.size() + 3 + static_cast<std::size_t>(std::count(keys.begin(), keys.end(), '\n'));
  const std::size_t room = screen.rows > others ? screen.rows - others : 1;
  std::size_t left_out = 0;
  if (screen.rows > 0 && ranks.size() > room) {
    std::stable_sort(ranks.begin(), ranks.end(), [](const ReportedRank* a, const ReportedRank* b) {
      return std::tuple(is_well(*a), -busy(*a)) < std::tuple(is_well(*b), -busy(*b));
    });
    left_out = ranks.size() - room;
    ranks.resize(room);
  }
  Rows rows = {{"RANK",     "HOST",   "STATE", "STEP",  "TIME",  "WAITED",         "HIDDEN",
                "DATA",     "FWD",    "BWD",   "OPTIM", "OTHER", "WEIGHTS",        "GRADS",
                "OPTSTATE", "MEMORY", "CPU",   "GPU",   "PID",   "LAST COLLECTIVE"}};
  for (const ReportedRank* rank : ranks) rows.push_back(row_of_rank(*rank, rank->rank == report.straggler));
  if (std::ranges::none_of(report.ranks, is_in_no_group)) remove_column(rows, "CPU");
  if (std::ranges::none_of(report.ranks, has_gpu)) remove_column(rows, "GPU");
  narrow(rows, screen.columns, report.facts.hosts == 1);
  std::string text;
  for (const std::string& line : lines) {
    const std::string shown = cut(line, screen.columns);
    const bool is_wrong = first_finding(report) && &line == &lines.back();
    text += (is_wrong && screen.has_colours ? coloured(shown, kFailing) : shown) + "\n";
  }
  text += "\n";
  const auto table = in_columns(rows);
  for (std::size_t i = 0; i < table.size(); ++i) {
    const ReportedRank* const rank = i == 0 ? nullptr : ranks[i - 1];
    const std::string line = cut(table[i], screen.columns);
    const bool is_slow = rank != nullptr && rank->rank == report.straggler;
    const char* const colour = rank != nullptr && !is_well(*rank) ? kFailing : is_slow ? kSlow : nullptr;
    text += (colour != nullptr && screen.has_colours ? coloured(line, colour) : line) + "\n";
  }
  if (left_out > 0) text += cut(fmt::format("and {} more; --json has all", left_out), screen.columns) + "\n";
  while (!keys.empty()) text += cut(take_word(keys, '\n'), screen.columns) + "\n";
  return text;
}

LiveReport ask_launcher(const FoundRun& run) {
  auto report = read_live_report(answer_to(run, {.what = RunRequest::What::top}));
  if (!report)
    throw Error(fmt::format(
        "{} has ended, or is of another version of lockstep; lockstep ps shows the runs that answer", run.run_id));
  return *report;
}

LiveReport ask_for_report(const FoundRun& run) {
  LiveReport report = ask_launcher(run);
  if (report.facts.node_rank != 0) {
    throw Error(
        fmt::format("{}: the ranks of this run report to the launcher of node rank 0, and this host has node rank {}; "
                    "run this command on the host of node rank 0",
                    run.run_id, report.facts.node_rank));
  }
  return report;
}

void add_ranks_in_no_group(LiveReport& report) {
  const RunFacts& facts = report.facts;
  std::map<int, ReportedRank> others;
  for (int rank = facts.first_rank; rank < facts.first_rank + facts.ranks; ++rank) {
    if (std::ranges::find(report.ranks, rank, &ReportedRank::rank) != report.ranks.end()) continue;
    others[rank] = {.rank = rank,
                    .host = facts.host,
                    .state = facts.node_rank == 0 ? "no group" : "reports to the launcher of node rank 0",
                    .cpu_s = 0};
  }
  if (others.empty()) return;
  std::map<pid_t, ReportedRank*> owners;  // a parent comes before its children
  for (const ProcessEntry& process : descendants_of(facts.pid)) {
    ReportedRank*& owner = owners[process.pid];
    owner = owners[process.parent];
    for (auto& [rank, other] : others) {
      if (process.parent == facts.pid && started_with(process.pid, fmt::format("RANK={}", rank))) owner = &other;
    }
    if (owner == nullptr) continue;
    if (owner->pid == 0) owner->pid = process.pid;
    *owner->cpu_s += static_cast<double>(process.user + process.system) / static_cast<double>(sysconf(_SC_CLK_TCK));
    owner->resident_bytes += proportional_bytes(process.pid);
  }
  for (auto& [rank, other] : others) {
    if (other.pid != 0) report.ranks.push_back(std::move(other));
  }
  std::ranges::sort(report.ranks, {}, &ReportedRank::rank);
}

namespace {

// Adds the GPU use of this host to reports, as long as the host has GPUs.
class ReportWithGpus {
 public:
  LiveReport ask(const FoundRun& run) {
    LiveReport report = ask_for_report(run);
    add_ranks_in_no_group(report);
    if (!has_gpus_) return report;
    const auto processes = ask_gpu_use();
    has_gpus_ = processes.has_value();
    if (processes) add_gpu_use(report, report.facts.host, *processes);
    return report;
  }

 private:
  bool has_gpus_ = true;
};

}  // namespace

void show_top(const FoundRun& run, const RunsOptions& options) {
  ReportWithGpus reports;
  if (options.json) return write_to_stdout(as_json(reports.ask(run)));
  if (options.once || !terminal()) return write_to_stdout(as_screen(reports.ask(run), {}));
  Signals signals;
  const Keys keys;
  bool shows_keys = false;
  bool is_shown = false;
  while (true) {
    LiveReport report;
    try {
      report = reports.ask(run);
    } catch (const Error&) {
      if (!is_shown) throw;  // the error has a remedy, as on a host that does not have node rank 0
      // The run has ended meanwhile: the message stands below its last state.
      return write_to_stdout(fmt::format("\n{} has ended, or no longer answers\n", run.run_id));
    }
    Screen screen = terminal().value_or(Screen{});
    screen.has_keys = keys.has_any();
    screen.shows_keys = shows_keys;
    redraw(as_screen(report, screen));
    is_shown = true;
    const char key = keys.await(signals, options.interval);
    if (key == 'q') return write_to_stdout("\n");
    if (key == '?') shows_keys = !shows_keys;
  }
}

}  // namespace lockstep::launcher
