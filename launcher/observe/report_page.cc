// SPDX-License-Identifier: Apache-2.0
// A report as HTML: no script, no file beside it, nothing from a network. It is XML too, so that a test can read it.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "launcher/observe/chart.h"
#include "launcher/observe/run_report.h"
#include "launcher/run/job_report.h"

namespace lockstep::launcher {
namespace {

constexpr std::size_t kMostColumns = 120;
constexpr double kNoValue = std::numeric_limits<double>::quiet_NaN();

// Colours p0 ... p8 are the phases', light and dark: Okabe and Ito's set, which most colour-blind people can tell
// apart.
constexpr std::string_view kHead = R"(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>lockstep report</title>
<style>
:root { color-scheme: light dark; --text: #1b1f24; --page: #ffffff; --faint: #57606a; --rule: #d0d7de; --hot: #d55e00; --line: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --page: #0d1117; --faint: #9198a1; --rule: #3d444d; --hot: #ff8f40; --line: #56b4e9; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); max-width: 1000px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; border-bottom: 1px solid var(--rule); }
p.faint, .faint { color: var(--faint); } p.straggler { font-weight: 600; }
svg { width: 100%; height: auto; } svg text { font-size: 12px; fill: var(--faint); }
polyline { fill: none; stroke: var(--line); stroke-width: 1.5; } rect.cell { fill: var(--hot); }
table { border-collapse: collapse; width: 100%; font-size: 13px; } th, td { text-align: right; padding: 2px 6px; border-bottom: 1px solid var(--rule); }
th:first-child, td:first-child, td.text { text-align: left; } td:first-child { white-space: nowrap; }
.p0 { fill: #e69f00; color: #e69f00; } .p1 { fill: #56b4e9; color: #56b4e9; } .p2 { fill: #0072b2; color: #0072b2; }
.p3 { fill: #9bd3ba; color: #9bd3ba; } .p4 { fill: #d55e00; color: #d55e00; } .p5 { fill: #009e73; color: #009e73; }
.p6 { fill: #cc79a7; color: #cc79a7; } .p7 { fill: #b5a300; color: #b5a300; } .p8 { fill: #9198a1; color: #9198a1; }
.key span { display: inline-block; margin-right: 1em; } .key b { font-weight: 400; }
</style>
</head>
<body>
)";

double in_ms(double ns) { return ns / 1e6; }

std::string label_of(const RankTable& table) { return fmt::format("rank {} ({})", table.rank, table.host); }

std::string heading(std::string_view text) { return fmt::format("<h2>{}</h2>\n", escaped(text)); }
std::string paragraph(std::string_view text, std::string_view kind = "faint") {
  return fmt::format("<p class=\"{}\">{}</p>\n", kind, escaped(text));
}

// Of the rank that has the most steps in each start, one start behind the other.
template <typename Value>
std::vector<double> series(const RunReport& report, Value value) {
  std::vector<double> values;
  for (const ReportedStart& start : report.starts) {
    const auto longest = std::max_element(start.ranks.begin(), start.ranks.end(),
                                          [](const auto& a, const auto& b) { return a.rows.size() < b.rows.size(); });
    if (longest == start.ranks.end()) continue;
    for (const StepRow& row : longest->rows) values.push_back(value(row));
  }
  return values;
}

bool has_some(const std::vector<double>& values) {
  return std::any_of(values.begin(), values.end(), [](double value) { return std::isfinite(value); });
}

std::string curves(const RunReport& report) {
  std::string html;
  const auto loss = series(report, [](const StepRow& row) { return row.loss.value_or(kNoValue); });
  if (has_some(loss)) html += heading("Loss of the global batch, by step") + line_chart(loss, "loss by step");
  const auto speed = series(report, [](const StepRow& row) {
    return row.weight > 0 && row.length() > 0
               ? static_cast<double>(row.weight) * 1e9 / static_cast<double>(row.length())
               : kNoValue;
  });
  if (has_some(speed)) {
    html += heading("Samples (or what set_weight() said) per second, by step") + line_chart(speed, "samples/s by step");
  }
  return html;
}

// Means over the steps, in ms.
std::vector<double> means_of(const RankTable& table) {
  std::vector<double> means(kPhases, 0.0);
  for (const StepRow& row : table.rows) {
    for (std::size_t i = 0; i < kPhases; ++i) means[i] += in_ms(static_cast<double>(row.ns[i]));
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
    const double all = hidden + bar.parts[static_cast<std::size_t>(Phase::exposed)];
    rows += all > 0 ? fmt::format("<td>{:.0f} %</td></tr>\n", 100 * hidden / all) : "<td>-</td></tr>\n";
  }
  std::string key = "<p class=\"key\">";
  std::string names;
  for (std::size_t i = 0; i < kPhases; ++i) {
    if (!is_there[i]) continue;
    key += fmt::format("<span><b class=\"p{}\">&#x25A0;</b> {}</span>", i, name_of(static_cast<Phase>(i)));
    names += fmt::format("<th>{}</th>", name_of(static_cast<Phase>(i)));
  }
  return heading("Where a step's time goes, mean by rank") + stacked_bars(bars, "time of a step by rank") + key +
         "</p>\n<table><tr><th>ms</th>" + names + "<th>of communication hidden</th></tr>\n" + rows + "</table>\n";
}

// How much longer than the median rank each took for its own work, as a share of the step: 1 is a colour at 50 %.
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
         heat_map(rows, "own work beyond the median, by rank and step");
}

std::string findings_table(const RunReport& report) {
  std::string rows;
  for (const ReportedStart& start : report.starts) {
    for (const trace::Finding& finding : start.findings) {
      rows += fmt::format("<tr><td>start {}</td><td class=\"text\">{}</td></tr>\n", start.generation + 1,
                          escaped(trace::describe(finding)));
    }
  }
  if (rows.empty()) return {};
  return heading("Numbers that went wrong") +
         paragraph(
             "The first line of a start is where it began; what is NaN on one rank is so on all in the next step.") +
         "<table>\n" + rows + "</table>\n";
}

std::string bucket_table(const RunReport& report) {
  if (report.buckets.empty()) return {};
  std::string html = heading("Buckets") +
                     "<table><tr><th>bucket</th><th>bytes</th><th>under way, ms</th><th>all ranks there to end, "
                     "ms</th><th>bus bandwidth, GB/s</th></tr>\n";
  for (std::size_t i = 0; i < report.buckets.size(); ++i) {
    const ReportedBucket& bucket = report.buckets[i];
    html += fmt::format("<tr><td>{}</td><td>{}</td><td>{:.3f}</td><td>{:.3f}</td><td>{:.2f}</td></tr>\n", i,
                        bucket.bytes, in_ms(static_cast<double>(bucket.under_way)),
                        in_ms(static_cast<double>(bucket.moving)), bucket.bus_bandwidth / 1e9);
  }
  return html + "</table>\n";
}

std::string history_table(const JobHistory& history) {
  if (history.verdicts.empty() && history.lines.empty()) return {};
  std::string html = heading("Starts, snapshots, failures");
  for (const HistoryLine& line : history.verdicts) html += paragraph(line.text, "verdict");
  if (history.lines.empty()) return html;
  html += "<table>\n";
  for (const HistoryLine& line : history.lines) {
    html += fmt::format("<tr><td>{}</td><td class=\"text\">{}</td></tr>\n", escaped(line.time), escaped(line.text));
  }
  return html + "</table>\n";
}

}  // namespace

std::string as_page(const RunReport& report) {
  std::string html(kHead);
  html += fmt::format("<h1>{}</h1>\n", escaped(report.run_id.empty() ? "A run" : report.run_id));
  html += paragraph(fmt::format("{}, {}, {} that the traces still have.", count_of(report.world_size, "rank"),
                                count_of(static_cast<std::int64_t>(report.starts.size()), "start"),
                                count_of(static_cast<std::int64_t>(report.steps()), "step")));
  if (report.lost_events > 0) {
    html += paragraph(
        fmt::format("A trace keeps the last {} events of a rank: {} older ones are gone, and the charts begin late.",
                    trace::TraceRing::kEvents, report.lost_events));
  }
  for (const std::string& problem : report.problems) html += paragraph(problem);
  for (const ReportedStart& start : report.starts) {
    if (start.straggler) html += paragraph(describe(*start.straggler), "straggler");
  }
  html += findings_table(report) + curves(report);
  if (!report.starts.empty()) html += where_time_goes(report.starts.back()) + slowest_by_step(report.starts.back());
  return html + bucket_table(report) + history_table(report.history) + "</body>\n</html>\n";
}

}  // namespace lockstep::launcher
