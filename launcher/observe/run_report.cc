// SPDX-License-Identifier: Apache-2.0
#include "launcher/observe/run_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "launcher/observe/host_clocks.h"
#include "launcher/observe/json_number.h"
#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Returns the buckets of one start. The ranks of one host have one clock, so their launches can be compared.
std::vector<ReportedBucket> buckets_of(std::span<const RunTrace> ranks) {
  if (ranks.front().rank.steps.empty()) return {};
  const int world_size = ranks.back().rank.identity.world_size;
  const std::vector<trace::TracedBucket>& layout = ranks.front().rank.steps.back().buckets;
  const std::map<std::string, Passages> hosts = passages_by_host(ranks);
  std::vector<std::vector<std::int64_t>> under_way(layout.size());
  std::vector<std::vector<std::int64_t>> moving(layout.size());
  for (const auto& [number, rank] : ranks) {
    for (const trace::TracedStep& step : rank.steps) {
      if (step.buckets.size() != layout.size()) continue;
      for (std::size_t i = 0; i < layout.size(); ++i) {
        const trace::TracedBucket& bucket = step.buckets[i];
        const std::int64_t last = hosts.at(rank.identity.host).at({number, step.number, i}).launched;
        under_way[i].push_back(bucket.finished - bucket.launched);
        moving[i].push_back(std::max<std::int64_t>(bucket.finished - last, 0));
      }
    }
  }
  std::vector<ReportedBucket> buckets(layout.size());
  for (std::size_t i = 0; i < layout.size(); ++i) {
    buckets[i] = {.bytes = layout[i].bytes, .under_way = median_of(under_way[i]), .moving = median_of(moving[i])};
    if (world_size < 2 || buckets[i].moving == 0) continue;
    const double travelled = 2.0 * (world_size - 1) / world_size * static_cast<double>(buckets[i].bytes);
    buckets[i].bus_bandwidth = travelled / (static_cast<double>(buckets[i].moving) * 1e-9);
  }
  return buckets;
}

// Adds each finding once: every rank reports findings about the replicas.
void add_findings(const std::vector<trace::Finding>& found, std::vector<trace::Finding>& all) {
  const auto key = [](const trace::Finding& it) { return std::tuple(it.step, it.rank, it.kind, it.parameter); };
  for (const trace::Finding& finding : found) {
    const auto place = std::ranges::lower_bound(all, key(finding), {}, key);
    if (place == all.end() || key(*place) != key(finding)) all.insert(place, finding);
  }
}

// Adds the scalars of one start's ranks, and those that the first rank's rows provide for each step.
void add_scalars(std::span<const RunTrace> ranks, const ReportedStart& start, std::map<std::string, ScalarCurve>& all) {
  for (auto& [name, curve] : all) curve.erase(curve.upper_bound(start.resumed), curve.end());
  std::map<std::string, ScalarCurve> of_start;
  for (const auto& [number, rank] : ranks) {
    for (const trace::ScalarSeries& series : rank.scalars) {
      std::map<std::int64_t, trace::ScalarPoint> last;  // the last of several values of a step
      for (const trace::ScalarPoint& point : series.points) last[point.step] = point;
      for (const auto& [step, point] : last) {
        ReportedScalar& scalar = of_start[series.name].try_emplace(step).first->second;
        if (++scalar.ranks == 1) scalar.time = point.time + rank.wall_clock;
        trace::add_to_mean(scalar.value, point.value, scalar.ranks);
      }
    }
  }
  const RankTable& first = start.ranks.front();
  for (const StepRow& row : first.rows) {
    const auto add = [&](const char* name, double value) {
      of_start[name].try_emplace(first.done(row), ReportedScalar{value, 1, row.end + first.wall_clock});
    };
    add("step ms", ms(row.length()));
    if (row.loss) add("loss", *row.loss);  // the table of scalars may have dropped it
    if (row.weight > 0 && row.length() > 0)
      add("samples per second", static_cast<double>(row.weight) / ms(row.length()) * 1e3);
  }
  for (auto& [name, curve] : of_start) {
    curve.merge(all[name]);
    all[name] = std::move(curve);
  }
  std::erase_if(all, [](const auto& entry) { return entry.second.empty(); });
}

std::int64_t end_of(const trace::RankTrace& rank) {
  std::int64_t end = rank.began;
  if (!rank.spans.empty()) end = std::max(end, rank.spans.back().end);
  if (!rank.steps.empty()) end = std::max(end, rank.steps.back().end);
  return end + rank.wall_clock;
}

// Adds one start, by the traces of its ranks.
void add_start(std::span<const RunTrace> ranks, RunReport& report) {
  ReportedStart& start = report.starts.emplace_back(ReportedStart{.number = ranks.front().start});
  for (const auto& [number, rank] : ranks) {
    report.run_id = rank.identity.run_id;
    report.world_size = rank.identity.world_size;
    if (report.command.empty()) report.command = rank.identity.command;
    const std::int64_t began = rank.began + rank.wall_clock;
    report.began = report.began == 0 ? began : std::min(report.began, began);
    report.ended = std::max(report.ended, end_of(rank));
    const std::string& host = rank.identity.host;
    if (std::ranges::find(report.hosts, host) == report.hosts.end()) report.hosts.push_back(host);
    report.lost_events += rank.lost;
    start.ranks.push_back(table_of(rank));
    if (!rank.steps.empty()) {
      start.resumed = std::min(start.resumed, rank.steps_before);
      start.done = std::max(start.done, rank.steps_before + rank.steps.back().step + 1);
    }
    add_findings(rank.findings, start.findings);
  }
  start.straggler = find_straggler(start.ranks);
  add_scalars(ranks, start, report.scalars);
}

OrderedJson phases_json(const StepRow& row) {
  OrderedJson json = OrderedJson::object();
  for (std::size_t i = 0; i < kPhases; ++i) json[std::string(name_of(static_cast<Phase>(i)))] = ms(row.ns[i]);
  return json;
}

}  // namespace

std::size_t RunReport::steps() const {
  std::size_t steps = 0;
  for (const ReportedStart& start : starts) {
    std::size_t most = 0;
    for (const RankTable& table : start.ranks) most = std::max(most, table.rows.size());
    steps += most;
  }
  return steps;
}

RunTotals RunReport::totals() const {
  RunTotals totals;
  double samples = 0;
  double seconds = 0;
  for (const ReportedStart& start : starts) {
    totals.steps = std::max(totals.steps, std::min(start.done, start.until));
    for (const RankTable& table : start.ranks) {
      for (const StepRow& row : table.rows) {
        samples += row.weight > 0 ? static_cast<double>(row.weight) : 0;
        seconds += row.weight > 0 ? static_cast<double>(row.length()) / 1e9 : 0;
      }
    }
  }
  if (seconds > 0) totals.samples_per_s = samples / seconds;
  if (const auto loss = scalars.find("loss"); loss != scalars.end()) {
    for (const auto& [step, scalar] : loss->second) {
      totals.final_loss = {step, scalar.value};
      if (!std::isfinite(scalar.value)) continue;
      if (!totals.best_loss || scalar.value < totals.best_loss->second) totals.best_loss = totals.final_loss;
    }
  }
  return totals;
}

RunReport report_of(const RunTraces& traces) {
  RunReport report{.problems = traces.problems};
  for (std::span<const RunTrace> rest = traces.traces; !rest.empty();) {
    const auto next = std::ranges::upper_bound(rest, rest.front().start, {}, &RunTrace::start);
    const auto ranks = rest.first(static_cast<std::size_t>(next - rest.begin()));
    rest = rest.subspan(ranks.size());
    add_start(ranks, report);
    if (rest.empty()) report.buckets = buckets_of(ranks);
  }
  std::int64_t until = std::numeric_limits<std::int64_t>::max();
  for (auto start = report.starts.rbegin(); start != report.starts.rend(); ++start) {
    start->until = until;
    until = std::min(until, start->resumed);
  }
  return report;
}

namespace {

// Lists, for each start, the ranks whose traces are missing.
std::vector<std::string> missing_traces(const RunTraces& traces) {
  std::map<int, std::set<int>> missing;  // by start
  for (const RunTrace& trace : traces.traces) {
    const auto [start, is_new] = missing.try_emplace(trace.start);
    for (int rank = 0; is_new && rank < trace.rank.identity.world_size; ++rank) start->second.insert(rank);
  }
  for (const RunTrace& trace : traces.traces) missing[trace.start].erase(trace.rank.identity.rank);
  std::vector<std::string> lines;
  for (const auto& [number, ranks] : missing) {
    if (ranks.empty()) continue;
    lines.push_back(
        fmt::format("start {}: no trace of rank {} is here: the rank was on another host, never began, or found no "
                    "room in the folder",
                    number, fmt::join(ranks, ", ")));
  }
  return lines;
}

}  // namespace

RunReport read_report(const std::filesystem::path& folder) {
  const RunTraces traces = read_traces(folder);
  if (traces.traces.empty()) {
    throw InvalidArgument(
        fmt::format("{} has no trace of a rank (start1/rank0.trace); give the --log-dir of a run, or FILE.ranks of "
                    "its --trace FILE{}",
                    folder.string(), traces.problems.empty() ? "" : "; " + traces.problems.front()));
  }
  RunReport report = report_of(traces);
  for (std::string& line : missing_traces(traces)) report.problems.push_back(std::move(line));
  report.history = read_history(folder, report.run_id);
  return report;
}

std::string as_json_lines(const RunReport& report) {
  std::string text;
  const auto line = [&](const OrderedJson& json) {
    text += json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
  };
  const RunTotals totals = report.totals();
  OrderedJson buckets = OrderedJson::array();
  for (const ReportedBucket& bucket : report.buckets) {
    buckets.push_back({{"bytes", bucket.bytes},
                       {"under_way_ms", ms(bucket.under_way)},
                       {"moving_ms", ms(bucket.moving)},
                       {"bus_bandwidth", bucket.bus_bandwidth}});
  }
  line({{"type", "run"},
        {"run_id", report.run_id},
        {"command", report.command},
        {"world_size", report.world_size},
        {"hosts", report.hosts},
        {"began_s", static_cast<double>(report.began) / 1e9},
        {"ended_s", static_cast<double>(report.ended) / 1e9},
        {"verdict", report.history.is_over ? OrderedJson(report.history.verdicts.back().text) : OrderedJson()},
        {"steps", totals.steps},
        {"timed_steps", report.steps()},
        {"samples_per_s", totals.samples_per_s},
        {"final_loss", totals.final_loss ? number_json(totals.final_loss->second) : OrderedJson()},
        {"best_loss", totals.best_loss ? OrderedJson(totals.best_loss->second) : OrderedJson()},
        {"lost_events", report.lost_events},
        {"buckets", std::move(buckets)}});
  for (const ReportedStart& start : report.starts) {
    OrderedJson straggler;
    if (start.straggler) {
      straggler = {{"rank", start.straggler->rank},
                   {"host", start.straggler->host},
                   {"share", start.straggler->share},
                   {"cause", std::string(name_of(start.straggler->cause))}};
    }
    line({{"type", "start"}, {"start", start.number}, {"straggler", std::move(straggler)}});
    for (const trace::Finding& finding : start.findings) {
      line({{"type", "finding"},
            {"start", start.number},
            {"rank", finding.rank},
            {"step", finding.step},
            {"kind", std::string(trace::name_of(finding.kind))},
            {"parameter", finding.parameter}});
    }
    for (const RankTable& table : start.ranks) {
      for (const StepRow& row : table.rows) {
        line({{"type", "step"},
              {"start", start.number},
              {"rank", table.rank},
              {"step", row.step},
              {"steps_done", table.done(row)},
              {"ms", ms(row.length())},
              {"own_ms", ms(row.own())},
              {"weight", row.weight},
              {"loss", row.loss ? number_json(*row.loss) : OrderedJson()},
              {"phases_ms", phases_json(row)}});
      }
    }
  }
  for (const auto& [name, curve] : report.scalars) {
    for (const auto& [step, scalar] : curve) {
      line({{"type", "scalar"},
            {"name", name},
            {"steps_done", step},
            {"value", number_json(scalar.value)},
            {"ranks", scalar.ranks}});
    }
  }
  return text;
}

}  // namespace lockstep::launcher
