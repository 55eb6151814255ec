#include "launcher/job_report.h"

#include <fmt/format.h>

#include "runtime/base/exit_code.h"

namespace lockstep::launcher {
namespace {

std::string who(const RankProcess& process, const std::string& host) {
  return fmt::format("rank {} (host {}, pid {}) {}", process.rank, host, process.pid, process.ending->describe());
}

std::string ending_of_others(int others) {
  return others == 0   ? ""
         : others == 1 ? "; ending the other rank"
                       : fmt::format("; ending the other {} ranks", others);
}

}  // namespace

std::string count_of(std::int64_t count, std::string_view noun, std::string_view plural_ending) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : plural_ending);
}

FailureReport describe_failure(const RankProcess& process, const std::string& host, std::chrono::duration<double> age,
                               int others) {
  FailureReport report;
  report.message =
      fmt::format("{} {:.1f} s after the start{}", who(process, host), age.count(), ending_of_others(others));
  if (const auto hint = process.ending->hint(); !hint.empty()) report.details.push_back("  hint: " + hint);
  const std::string& err_file = process.err.path();
  if (err_file.empty()) return report;
  const auto lines = last_lines(err_file, 10);
  report.details.push_back(lines.empty() ? fmt::format("  it wrote nothing to {}", err_file)
                                         : fmt::format("  the end of {}:", err_file));
  for (const auto& line : lines) report.details.push_back("  | " + line);
  return report;
}

FailureReport describe_failure(const Cause& cause, int others) {
  return {.message = cause.text + ending_of_others(others), .details = {}};
}

std::string describe_lost_output(std::span<const RankProcess> ranks) {
  std::string text;
  for (const auto& process : ranks) {
    for (const auto* output : {&process.out, &process.err}) {
      if (output->lost_bytes() == 0) continue;
      text += fmt::format("{}{} of {}", text.empty() ? "" : ", ",
                          count_of(static_cast<std::int64_t>(output->lost_bytes()), "byte"), output->path());
    }
  }
  return text.empty() ? text : fmt::format("output was lost: {}", text);
}

std::string describe_later_end(const RankProcess& process, const std::string& host, int stop_signal) {
  return fmt::format("{} after {}", who(process, host), signal_name(stop_signal));
}

std::string summarise_failure(const RankProcess& first, const std::optional<Cause>& cause, int others, int killed,
                              std::chrono::milliseconds grace) {
  std::string rest;
  if (others > 0) rest = fmt::format("; {} ended after it", count_of(others, "other rank"));
  if (killed > 0) rest += fmt::format(" ({} of them by SIGKILL, {} ms after SIGTERM)", killed, grace.count());
  return fmt::format("rank {} failed first: it {}{}; exit code {}", first.rank,
                     cause ? "did not go on, as said above" : first.ending->describe(), rest,
                     failure_exit_code(first, cause));
}

int failure_exit_code(const RankProcess& first, const std::optional<Cause>& cause) {
  return cause ? kExitPeerLost : first.ending->exit_code();
}

}  // namespace lockstep::launcher
