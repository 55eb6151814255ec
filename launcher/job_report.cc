#include "launcher/job_report.h"

#include <fmt/format.h>

namespace lockstep::launcher {
namespace {

std::string who(const RankProcess& process, const std::string& host) {
  return fmt::format("rank {} (host {}, pid {}) {}", process.rank, host, process.pid, process.ending->describe());
}

}  // namespace

std::string count_of(int count, std::string_view noun, std::string_view plural_ending) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : plural_ending);
}

FailureReport describe_failure(const RankProcess& process, const std::string& host, std::chrono::duration<double> age,
                               int others) {
  FailureReport report;
  report.message = fmt::format("{} {:.1f} s after the start{}", who(process, host), age.count(),
                               others == 0   ? ""
                               : others == 1 ? "; ending the other rank"
                                             : fmt::format("; ending the other {} ranks", others));
  if (const auto hint = process.ending->hint(); !hint.empty()) report.details.push_back("  hint: " + hint);
  if (process.err_file.empty()) return report;
  const auto lines = last_lines(process.err_file, 10);
  report.details.push_back(lines.empty() ? fmt::format("  it wrote nothing to {}", process.err_file)
                                         : fmt::format("  the end of {}:", process.err_file));
  for (const auto& line : lines) report.details.push_back("  | " + line);
  return report;
}

std::string describe_later_end(const RankProcess& process, const std::string& host, int stop_signal) {
  return fmt::format("{} after {}", who(process, host), signal_name(stop_signal));
}

std::string summarise_failure(const RankProcess& first, int others, int killed, std::chrono::milliseconds grace) {
  std::string rest;
  if (others > 0) rest = fmt::format("; {} ended after it", count_of(others, "other rank"));
  if (killed > 0) rest += fmt::format(" ({} of them by SIGKILL, {} ms after SIGTERM)", killed, grace.count());
  return fmt::format("rank {} failed first: it {}{}; exit code {}", first.rank, first.ending->describe(), rest,
                     first.ending->exit_code());
}

}  // namespace lockstep::launcher
