// SPDX-License-Identifier: Apache-2.0
#include "launcher/live/live_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "launcher/observe/json_number.h"
#include "runtime/base/printable.h"

namespace lockstep::launcher {
namespace {

using Json = nlohmann::ordered_json;
using membership::MemberState;

constexpr double kNs = 1e-9;

std::string_view name_of_state(const LiveRank& rank) {
  switch (rank.member.state) {
    case MemberState::present: return rank.totals ? "training" : "starting";
    case MemberState::left: return "left";
    case MemberState::lost: return "lost";
    case MemberState::silent: return "silent";
    case MemberState::failed: return "failed";
  }
  return "?";
}

ReportedRank reported(const LiveRank& live) {
  const auto& member = live.member;
  ReportedRank rank{.rank = member.info.rank,
                    .host = member.info.process.host,
                    .pid = member.info.process.pid,
                    .state = std::string(name_of_state(live)),
                    .step = member.position.step,
                    .collectives = member.position.sequence,
                    .collective = member.position.collective,
                    .unchanged_s = std::chrono::duration<double>(member.unchanged_for).count()};
  if (live.totals) {
    const trace::RankTotals& totals = *live.totals;
    rank.resident_bytes = static_cast<double>(totals.resident);
    for (std::size_t i = 0; i < trace::kHeld; ++i) rank.held_bytes[i] = static_cast<double>(totals.held[i]);
    rank.steps = static_cast<double>(totals.steps);
    rank.rows = static_cast<double>(totals.rows);
    rank.waited_s = static_cast<double>(totals.waited + totals.of(trace::SpanKind::collective)) * kNs;
    rank.hidden_s = static_cast<double>(totals.hidden) * kNs;
    rank.loss = totals.loss;
    rank.wrong_steps = static_cast<double>(totals.wrong_steps);
    rank.equal_in = totals.equal_in;
    rank.finding = totals.finding;
    if (totals.left >= 0) rank.left_s = static_cast<double>(totals.left) * kNs;
    if (totals.snapshot_age >= 0) rank.snapshot_age_s = static_cast<double>(totals.snapshot_age) * kNs;
  }
  if (live.recent) {
    const auto length = static_cast<double>(live.recent->length());
    rank.step_s = length / static_cast<double>(live.recent->number) * kNs;
    rank.rows_per_s = static_cast<double>(live.recent->weight) / (length * kNs);
    for (const std::int64_t part : live.recent->ns) rank.shares.push_back(static_cast<double>(part) / length);
  }
  return rank;
}

// Applies `field(name, value)` to each field, which both directions use.
template <typename Rank, typename Field>
void rank_fields(Rank& rank, Field field) {
  field("rank", rank.rank);
  field("host", rank.host);
  field("pid", rank.pid);
  field("state", rank.state);
  field("step", rank.step);
  field("collectives", rank.collectives);
  field("collective", rank.collective);
  field("unchanged_s", rank.unchanged_s);
  field("resident_bytes", rank.resident_bytes);
  field("cpu_s", rank.cpu_s);
  field("weights_bytes", rank.held_bytes[0]);
  field("gradients_bytes", rank.held_bytes[1]);
  field("optimizer_state_bytes", rank.held_bytes[2]);
  field("steps", rank.steps);
  field("rows", rank.rows);
  field("waited_s", rank.waited_s);
  field("hidden_s", rank.hidden_s);
  field("step_s", rank.step_s);
  field("rows_per_s", rank.rows_per_s);
  field("loss", rank.loss);
  field("snapshot_age_s", rank.snapshot_age_s);
  field("left_s", rank.left_s);
  field("gpu_use", rank.gpu_use);
  field("gpu_memory_bytes", rank.gpu_memory_bytes);
  field("wrong_steps", rank.wrong_steps);
  field("equal_in", rank.equal_in);
  field("finding", rank.finding);
}

struct Write {
  Json& to;
  template <typename Value>
  void operator()(const char* name, const Value& value, Value = {}) const {
    to[name] = value;
  }
  void operator()(const char* name, const std::optional<double>& value) const {
    to[name] = value ? number_json(*value) : Json();
  }
  void operator()(const char* name, const std::optional<trace::Finding>& found) const {
    to[name] = found ? Json{{"kind", std::string(trace::name_of(found->kind))},
                            {"rank", found->rank},
                            {"step", found->step},
                            {"parameter", found->parameter},
                            {"text", trace::describe(*found)}}
                     : Json();
  }
};

// Throws nlohmann's exceptions for a field that is missing or has another type.
struct Read {
  const Json& from;
  template <typename Value>
  void operator()(const char* name, Value& value, Value = {}) const {
    from.at(name).get_to(value);
  }
  void operator()(const char* name, std::string& value) const {
    value = printable(from.at(name).get<std::string>(), 4096);
  }
  void operator()(const char* name, std::optional<double>& value) const {
    if (const Json& found = from.at(name); !found.is_null()) value = number_in(found);
  }
  void operator()(const char* name, std::optional<trace::Finding>& value) const {
    const Json& found = from.at(name);
    if (found.is_null()) return;
    const auto kind = trace::finding_kind(found.at("kind").get<std::string>());
    if (!kind) return;
    value = {.kind = *kind, .rank = found.at("rank").get<int>(), .step = found.at("step").get<std::int64_t>()};
    Read{found}("parameter", value->parameter);
  }
};

LiveReport report_from(const Json& json) {
  LiveReport report;
  for_each_fact(report.facts, Read{json});
  for (const Json& entry : json.at("ranks")) {
    ReportedRank rank;
    rank_fields(rank, Read{entry});
    if (const Json& shares = entry.at("shares"); !shares.is_null()) {
      for (std::size_t i = 0; i < kPhases; ++i) {
        rank.shares.push_back(shares.at(std::string(name_of(static_cast<Phase>(i)))).get<double>());
      }
    }
    report.ranks.push_back(std::move(rank));
  }
  for (const Json& entry : json.at("scalars")) {
    trace::Scalar scalar{.step = entry.at("step").get<std::int64_t>(), .value = number_in(entry.at("value"))};
    Read{entry}("name", scalar.name);
    report.scalars.push_back(std::move(scalar));
  }
  if (const Json& straggler = json.at("straggler"); !straggler.is_null()) {
    straggler.at("rank").get_to(report.straggler);
    straggler.at("share").get_to(report.straggler_share);
    Read{straggler}("text", report.straggler_text);
  }
  return report;
}

}  // namespace

std::string describe_collective(const ReportedRank& rank) {
  const std::string last = fmt::format("{} {}", rank.collectives, rank.collective);
  return rank.unchanged_s < 2 ? last : fmt::format("{}, none since {:.1f} s", last, rank.unchanged_s);
}

std::optional<trace::Finding> first_finding(const LiveReport& report) {
  std::optional<trace::Finding> first;
  for (const ReportedRank& rank : report.ranks) {
    if (rank.finding && (!first || rank.finding->step < first->step)) first = rank.finding;
  }
  return first;
}

std::vector<trace::Scalar> newest_scalars(const std::vector<LiveRank>& ranks) {
  std::map<std::string, std::pair<trace::Scalar, int>> newest;  // values and the number of ranks that have one
  for (const LiveRank& rank : ranks) {
    if (!rank.totals) continue;
    for (const trace::Scalar& scalar : rank.totals->scalars) {
      auto& [mean, count] = newest[scalar.name];
      mean.name = scalar.name;
      mean.step = std::max(mean.step, scalar.step);
      trace::add_to_mean(mean.value, scalar.value, ++count);
    }
  }
  std::vector<trace::Scalar> scalars;
  for (auto& [name, mean] : newest) scalars.push_back(std::move(mean.first));
  return scalars;
}

LiveReport live_report(const RunFacts& facts, const LiveRun& run) {
  LiveReport report{.facts = facts, .scalars = newest_scalars(run.ranks())};
  for (const LiveRank& rank : run.ranks()) report.ranks.push_back(reported(rank));
  // If ranks take turns on the cores, the slowest is the one that had the fewest of them.
  if (const auto straggler = facts.is_crowded ? std::nullopt : run.straggler(0.05)) {
    report.straggler = straggler->rank;
    report.straggler_share = straggler->share;
    report.straggler_text = describe(*straggler);
  }
  return report;
}

std::string as_json(const LiveReport& report) {
  Json json = Json::object();
  for_each_fact(report.facts, Write{json});
  Json& ranks = json["ranks"] = Json::array();
  for (const ReportedRank& rank : report.ranks) {
    Json entry = Json::object();
    rank_fields(rank, Write{entry});
    Json& shares = entry["shares"] = Json();
    for (std::size_t i = 0; i < rank.shares.size(); ++i) {
      shares[std::string(name_of(static_cast<Phase>(i)))] = rank.shares[i];
    }
    ranks.push_back(std::move(entry));
  }
  json["straggler"] =
      report.straggler < 0
          ? Json()
          : Json{{"rank", report.straggler}, {"share", report.straggler_share}, {"text", report.straggler_text}};
  Json& scalars = json["scalars"] = Json::array();
  for (const auto& [name, step, value] : report.scalars) {
    scalars.push_back({{"name", name}, {"step", step}, {"value", number_json(value)}});
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::optional<LiveReport> read_live_report(std::string_view text) {
  try {
    return report_from(Json::parse(text));
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

}  // namespace lockstep::launcher
