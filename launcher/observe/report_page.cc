// SPDX-License-Identifier: Apache-2.0
// The report as an HTML page without scripts, further files or network access. The page is also XML, so that a test can
// parse it.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <map>
#include <sstream>

#include "launcher/base/amounts.h"
#include "launcher/observe/chart.h"
#include "launcher/observe/run_report.h"
#include "runtime/base/text.h"
#include "runtime/trace/step_summary.h"

namespace lockstep::launcher {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostColumns = 120;

// Colours p0 ... p8 of the phases, for light and dark pages: Okabe and Ito's set, which most colour-blind people can
// distinguish.
constexpr std::string_view kHead = R"(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<style>
:root { color-scheme: light dark; --text: #1b1f24; --page: #ffffff; --faint: #57606a; --rule: #d0d7de; --hot: #d55e00; --line: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --page: #0d1117; --faint: #9198a1; --rule: #3d444d; --hot: #ff8f40; --line: #56b4e9; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); max-width: 1000px; margin: 2em auto; padding: 0 1em; }
h1, p, .text { overflow-wrap: anywhere; } h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; border-bottom: 1px solid var(--rule); }
p.faint, .faint { color: var(--faint); } p.straggler { font-weight: 600; } b.failed { color: var(--hot); }
.wide { overflow-x: auto; } svg { display: block; width: 100%; min-width: 600px; height: auto; } svg text { font-size: 12px; fill: var(--faint); }
polyline { fill: none; stroke: currentColor; stroke-width: 1.5; } circle { fill: currentColor; } rect.cell { fill: var(--hot); }
@media (max-width: 640px) { svg.line { min-width: 0; } svg.line text { font-size: 20px; } }
path.grid { stroke: var(--rule); } path.bad { stroke: var(--hot); }
.l0 { color: var(--line); } .l1 { color: #d55e00; } .l2 { color: #009e73; } .l3 { color: #cc79a7; } .l4 { color: #e69f00; } .l5 { color: #9198a1; }
table { border-collapse: collapse; width: 100%; font-size: 13px; } th, td { text-align: right; vertical-align: top; padding: 2px 6px; border-bottom: 1px solid var(--rule); }
th:first-child, td:first-child, .text { text-align: left; } td:first-child { white-space: nowrap; }
.p0 { fill: #e69f00; color: #e69f00; } .p1 { fill: #56b4e9; color: #56b4e9; } .p2 { fill: #0072b2; color: #0072b2; }
.p3 { fill: #9bd3ba; color: #9bd3ba; } .p4 { fill: #d55e00; color: #d55e00; } .p5 { fill: #009e73; color: #009e73; }
.p6 { fill: #cc79a7; color: #cc79a7; } .p7 { fill: #b5a300; color: #b5a300; } .p8 { fill: #9198a1; color: #9198a1; }
.key span { display: inline-block; margin-right: 1em; } .key b { font-weight: 400; }
</style>
)";

std::string label_of(const RankTable& table) { return fmt::format("rank {} ({})", table.rank, table.host); }

std::string head_of(const std::string& title) {
  return fmt::format("{}<title>{}</title>\n</head>\n<body>\n<h1>{}</h1>\n", kHead, escaped(title), escaped(title));
}
std::string heading(std::string_view text) { return fmt::format("<h2>{}</h2>\n", escaped(text)); }
std::string paragraph(std::string_view text, std::string_view kind = "faint") {
  return fmt::format("<p class=\"{}\">{}</p>\n", kind, escaped(text));
}

std::string table(std::string_view rows) {
  return fmt::format("<div class=\"wide\"><table>\n{}</table></div>\n", rows);
}

std::string time_of(std::int64_t ns) {
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(static_cast<std::time_t>(ns / 1'000'000'000)));
}

std::string length_of(std::int64_t ns) {
  const std::int64_t s = ns / 1'000'000'000;
  if (s < 60) return trace::format_duration(std::chrono::nanoseconds(ns));
  return s < 3600 ? fmt::format("{} min {} s", s / 60, s % 60) : fmt::format("{} h {} min", s / 3600, s / 60 % 60);
}

// Returns the file name of a command's program. For "python3 -u train.py" the program is the script or module.
std::string program_of(const std::string& command) {
  std::istringstream words(command);
  std::string program;
  words >> program;
  program = fs::path(program).filename();
  if (!program.starts_with("python")) return program;
  for (std::string word; words >> word;) {
    if (!word.starts_with('-')) return fs::path(word).filename();
  }
  return program;
}

// Returns "train failed after 3 min 5 s": program, outcome, duration.
std::string title_of(const RunReport& report) {
  const std::string program = program_of(report.command);
  const std::string& outcome = report.history.outcome;
  return fmt::format("{} {} after {}", program.empty() ? "A run" : program,
                     outcome.empty()          ? "has not ended"
                     : outcome == "host lost" ? "lost a host"
                                              : outcome,
                     length_of(report.ended - report.began));
}

using Loss = std::optional<std::pair<std::int64_t, double>>;
std::string loss_of(const Loss& loss) {
  return loss ? fmt::format("{:.6g} (step {})", loss->second, loss->first) : "-";
}

// Returns the verdict, in bold if the run failed.
std::string verdict_of(const JobHistory& history) {
  if (!history.is_over) return "none: it has not ended, its launcher was killed, or it had no --log-dir";
  const std::string text = escaped(history.verdicts.back().text);
  return history.has_failed ? fmt::format("<b class=\"failed\">{}</b>", text) : text;
}

// Returns the table at the head of a report, with a row for each fact and a column for each run.
std::string facts_of(const std::vector<NamedReport>& runs) {
  std::vector<std::pair<std::string_view, std::string>> rows;
  for (const auto& [name, report] : runs) {
    const RunTotals totals = report.totals();
    const std::pair<std::string_view, std::string> facts[] = {
        {"verdict", verdict_of(report.history)},
        {"run", escaped(report.run_id)},
        {"command", escaped(report.command)},
        {"ranks", fmt::format("{} on {}: {}", report.world_size, count_of(std::ssize(report.hosts), "host"),
                              escaped(joined(report.hosts, std::identity(), ", ", 8)))},
        {"began", time_of(report.began)},
        {"ended", time_of(report.ended)},
        {"duration", length_of(report.ended - report.began)},
        {"starts", fmt::format("{}", report.starts.size())},
        {"steps", fmt::format("{}", totals.steps)},
        {"samples per second", totals.samples_per_s > 0 ? fmt::format("{:.4g}", totals.samples_per_s) : "-"},
        {"final loss", loss_of(totals.final_loss)},
        {"best loss", loss_of(totals.best_loss)}};
    rows.resize(std::size(facts));
    for (std::size_t i = 0; i < rows.size(); ++i) {
      rows[i].first = facts[i].first;
      rows[i].second += fmt::format("<td class=\"text\">{}</td>", facts[i].second);
    }
  }
  std::string html;
  for (const NamedReport& run : runs) html += fmt::format("<th class=\"text\">{}</th>", escaped(run.first));
  html = runs.size() > 1 ? fmt::format("<tr><th>run's folder</th>{}</tr>\n", html) : "";
  for (const auto& [name, cells] : rows) html += fmt::format("<tr><td>{}</td>{}</tr>\n", name, cells);
  return table(html);
}

// Returns a chart for each name, with a line for each run.
std::string charts_of(const std::vector<NamedReport>& runs, const std::string& key) {
  std::map<std::string, std::vector<Curve>> charts;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    for (const auto& [name, scalars] : runs[i].second.scalars) {
      auto& curves = charts[name];
      curves.resize(runs.size());
      curves[i].name = runs[i].first;
      for (const auto& [step, scalar] : scalars) curves[i].points.emplace_back(step, scalar.value);
    }
  }
  std::string html;
  const auto add = [&](const std::string& name, const std::string& title, const Axis& axis) {
    if (const auto chart = charts.extract(name)) {
      html += heading(title) + key + line_chart(chart.mapped(), axis, name + " by step");
    }
  };
  add("loss", "Loss", {"loss of the global batch"});
  add("samples per second", "Samples per second", {"samples, or what set_weight() said, of all ranks", true});
  add("step ms", "Time of a step", {"ms", true});
  while (!charts.empty()) {
    const std::string name = charts.begin()->first;
    add(name, name, {"mean over the ranks that logged it"});
  }
  return html;
}

// Returns the conclusion: why the run failed, which rank is slow, and how much of a step waits for communication.
std::string conclusion_of(const RunReport& report) {
  std::string html;
  if (report.history.is_over && report.history.has_failed)
    html += fmt::format("<b class=\"failed\">{}.</b> ", escaped(report.history.summary));
  if (report.starts.empty()) return html.empty() ? html : fmt::format("<p>{}</p>\n", html);
  const ReportedStart& last = report.starts.back();
  double waited = 0, all = 0;
  for (const RankTable& table : last.ranks) {
    for (const StepRow& row : table.rows) {
      waited += ms(row.ns[static_cast<std::size_t>(Phase::waited)]);
      all += ms(row.length());
    }
  }
  if (last.straggler) {
    html += escaped(describe(*last.straggler)) + ". ";
  } else if (last.ranks.size() > 1 && all > 0) {
    html += "No rank is slow. ";
  }
  if (report.world_size > 1 && all > 0)
    html += fmt::format("{:.0f} % of a step waits for other ranks.", 100 * waited / all);
  return html.empty() ? html : fmt::format("<p class=\"straggler\">{}</p>\n", html);
}

// Returns the means over the steps, in ms.
std::vector<double> means_of(const RankTable& table) {
  std::vector<double> means(kPhases, 0.0);
  for (const StepRow& row : table.rows) {
    for (std::size_t i = 0; i < kPhases; ++i) means[i] += ms(row.ns[i]);
  }
  for (double& mean : means) mean /= static_cast<double>(std::max<std::size_t>(table.rows.size(), 1));
  return means;
}

std::string where_time_goes(const ReportedStart& start) {
  std::vector<Bar> bars;
  std::array<bool, kPhases> is_there{};
  for (const RankTable& table : start.ranks) {
    bars.push_back({.label = label_of(table), .parts = means_of(table)});
    for (std::size_t i = 0; i < kPhases; ++i) is_there[i] = is_there[i] || bars.back().parts[i] > 0;
  }
  std::string rows;
  for (Bar& bar : bars) {
    rows += fmt::format("<tr><td>{}</td>", escaped(bar.label));
    for (std::size_t i = 0; i < kPhases; ++i) {
      bar.titles.push_back(fmt::format("{}: {:.3f} ms", name_of(static_cast<Phase>(i)), bar.parts[i]));
      if (is_there[i]) rows += fmt::format("<td>{:.3f}</td>", bar.parts[i]);
    }
    const double hidden = bar.parts[static_cast<std::size_t>(Phase::hidden)];
    const double all = hidden + bar.parts[static_cast<std::size_t>(Phase::waited)];
    rows += all > 0 ? fmt::format("<td>{:.0f} %</td></tr>\n", 100 * hidden / all) : "<td>-</td></tr>\n";
  }
  std::string key = "<p class=\"key\">";
  std::string names;
  for (std::size_t i = 0; i < kPhases; ++i) {
    if (!is_there[i]) continue;
    key += fmt::format("<span><b class=\"p{}\">&#x25A0;</b> {}</span>", i, name_of(static_cast<Phase>(i)));
    names += fmt::format("<th>{}</th>", name_of(static_cast<Phase>(i)));
  }
  return heading("Where a step's time goes, mean by rank") + stacked_bars(bars, "ms", "time of a step by rank") + key +
         "</p>\n" + table("<tr><th>ms</th>" + names + "<th>of communication hidden</th></tr>\n" + rows);
}

// Empty if no rank has told of any.
std::string memory_of_ranks(const ReportedStart& start) {
  std::string rows;
  bool is_known = false;
  for (const RankTable& ranks : start.ranks) {
    rows += fmt::format("<tr><td>{}</td>", escaped(label_of(ranks)));
    for (const std::int64_t bytes : ranks.held) {
      is_known |= bytes > 0;
      rows += bytes > 0 ? fmt::format("<td>{:.1f}</td>", static_cast<double>(bytes) / (1 << 20)) : "<td>-</td>";
    }
    rows += "</tr>\n";
  }
  if (!is_known) return {};
  return heading("Memory of training by rank, at most") +
         table("<tr><th>MiB</th><th>weights</th><th>gradients</th><th>optimizer's state</th></tr>\n" + rows);
}

// Draws the time that each rank spent on its own work beyond the median rank, as a share of the step; 50 % has the
// strongest colour.
std::string slowest_by_step(const ReportedStart& start) {
  const auto steps = rows_by_step(start.ranks);
  if (start.ranks.size() < 2 || steps.empty()) return {};
  std::vector<HeatRow> rows;
  for (const RankTable& table : start.ranks) rows.push_back({.label = label_of(table), .values = {}});
  const std::size_t group = (steps.size() + kMostColumns - 1) / kMostColumns;
  for (std::size_t from = 0; from < steps.size(); from += group) {
    const std::size_t to = std::min(from + group, steps.size());
    std::vector<double> excess(rows.size(), 0.0);
    double length = 0;
    for (std::size_t s = from; s < to; ++s) {
      std::vector<std::int64_t> own;
      for (const StepRow* row : steps[s]) own.push_back(row->own());
      const std::int64_t median = median_of(own);
      for (std::size_t r = 0; r < rows.size(); ++r) {
        excess[r] += static_cast<double>(std::max<std::int64_t>(own[r] - median, 0));
      }
      length += static_cast<double>(steps[s].front()->length());
    }
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const double share = length > 0 ? excess[r] / length : 0;
      rows[r].values.push_back(2 * share);
      rows[r].titles.push_back(fmt::format("{}, steps {} to {}: {:.0f} % of the step", rows[r].label,
                                           steps[from].front()->step, steps[to - 1].front()->step, 100 * share));
    }
  }
  return heading("Who makes the others wait, by step") +
         paragraph("The stronger the colour, the longer a rank's own work took than the median rank's.") +
         heat_map(rows, static_cast<double>(start.ranks.front().done(*steps.front().front())),
                  static_cast<double>(start.ranks.front().done(*steps.back().front())),
                  "own work beyond the median, by rank and step");
}

std::string findings_table(const RunReport& report) {
  std::string rows;
  for (const ReportedStart& start : report.starts) {
    for (const trace::Finding& finding : start.findings) {
      rows += fmt::format("<tr><td>start {}</td><td class=\"text\">{}</td></tr>\n", start.number,
                          escaped(trace::describe(finding)));
    }
  }
  if (rows.empty()) return {};
  return heading("Numbers that went wrong") +
         paragraph("The first line of each start is the origin: NaN on one rank reaches all ranks in the next step.") +
         table(rows);
}

std::string bucket_table(const RunReport& report) {
  if (report.buckets.empty()) return {};
  std::string rows =
      "<tr><th>bucket</th><th>size</th><th>in flight, ms</th><th>after the last rank came, ms</th><th>bus bandwidth, "
      "GB/s</th></tr>\n";
  for (std::size_t i = 0; i < report.buckets.size(); ++i) {
    const ReportedBucket& bucket = report.buckets[i];
    rows += fmt::format("<tr><td>{}</td><td>{}</td><td>{:.3f}</td><td>{:.3f}</td><td>{:.2f}</td></tr>\n", i,
                        readable_bytes(static_cast<std::uint64_t>(bucket.bytes)), ms(bucket.under_way),
                        ms(bucket.moving), bucket.bus_bandwidth / 1e9);
  }
  return heading("Buckets") + table(rows);
}

std::string history_table(const JobHistory& history) {
  if (history.verdicts.empty() && history.lines.empty()) return {};
  std::string html = heading("Starts, snapshots, failures");
  for (const HistoryLine& line : history.verdicts) html += paragraph(line.text, "verdict");
  std::string rows;
  for (const HistoryLine& line : history.lines) {
    rows += fmt::format("<tr><td>{}</td><td class=\"text\">{}</td></tr>\n", escaped(line.time), escaped(line.text));
  }
  return html + (rows.empty() ? "" : table(rows));
}

}  // namespace

std::string as_page(const RunReport& report) {
  const std::vector<NamedReport> runs{{"", report}};
  std::string html = head_of(title_of(report)) + conclusion_of(report) + facts_of(runs);
  if (report.lost_events > 0) {
    html +=
        paragraph(fmt::format("A trace keeps the last {} events of a rank: {} older ones are gone. Times and rates "
                              "are those of the last steps, of which it has {}.",
                              trace::TraceRing::kEvents, report.lost_events, report.steps()));
  }
  for (const std::string& problem : report.problems) html += paragraph(problem);
  for (const ReportedStart& start : report.starts) {
    if (!start.straggler || start.number == report.starts.back().number) continue;
    html += paragraph(fmt::format("start {}: {}", start.number, describe(*start.straggler)), "straggler");
  }
  html += findings_table(report);
  if (!report.starts.empty()) html += where_time_goes(report.starts.back()) + slowest_by_step(report.starts.back());
  html += charts_of(runs, "");
  if (!report.starts.empty()) html += memory_of_ranks(report.starts.back());
  return html + bucket_table(report) + history_table(report.history) + "</body>\n</html>\n";
}

std::string as_page(const std::vector<NamedReport>& runs) {
  std::string key = "<p class=\"key\">";
  for (std::size_t i = 0; i < runs.size(); ++i) {
    key += fmt::format("<span><b class=\"l{}\">&#x25A0;</b> {}</span>", i, escaped(runs[i].first));
  }
  key += "</p>\n";
  std::string problems;
  for (const auto& [name, report] : runs) {
    for (const std::string& problem : report.problems) problems += paragraph(fmt::format("{}: {}", name, problem));
  }
  return head_of("Runs side by side") + key + facts_of(runs) + problems + charts_of(runs, key) + "</body>\n</html>\n";
}

}  // namespace lockstep::launcher
