// SPDX-License-Identifier: Apache-2.0
#include "launcher/live/metrics_text.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <utility>

namespace lockstep::launcher {
namespace {

// Escapes a label's value.
std::string label_value(std::string_view text) {
  std::string value;
  for (const char letter : text) {
    if (letter == '\\' || letter == '"') value += '\\';
    value += letter == '\n' ? ' ' : letter;
  }
  return value;
}

// Returns a rank's number as its metric, or nullopt if it is not known: a count of -1 is not, nor is what is measured
// on a rank that has finished no step.
std::optional<double> known(const ReportedRank&, const std::optional<double>& number) { return number; }
std::optional<double> known(const ReportedRank&, std::int64_t number) {
  return number < 0 ? std::nullopt : std::optional(static_cast<double>(number));
}
std::optional<double> known(const ReportedRank& rank, double number) {
  return rank.steps > 0 ? std::optional(number) : std::nullopt;
}

class MetricsWriter {
 public:
  // `report` outlives the writer.
  explicit MetricsWriter(const LiveReport& report) : report_(report), run_(label_value(report.facts.run_id)) {}

  // A counter's name ends with "_total", as Prometheus asks.
  void family(std::string_view name, std::string_view help) {
    name_ = fmt::format("lockstep_{}", name);
    text_ +=
        fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name_, help, name.ends_with("_total") ? "counter" : "gauge");
  }
  void value(double value, std::string_view labels = {}) {
    text_ += fmt::format("{}{{run=\"{}\"{}{}}} {}\n", name_, run_, labels.empty() ? "" : ",", labels,
                         std::isnan(value) ? "NaN" : fmt::format("{}", value));
  }
  // Adds a family with a sample for each rank whose number is known.
  void of_ranks(std::string_view name, std::string_view help, auto ReportedRank::*number) {
    family(name, help);
    for (const ReportedRank& rank : report_.ranks) {
      if (const auto found = known(rank, rank.*number)) value(*found, labels_of(rank));
    }
  }
  static std::string labels_of(const ReportedRank& rank) {
    return fmt::format("rank=\"{}\",host=\"{}\"", rank.rank, label_value(rank.host));
  }
  std::string take() { return std::move(text_); }

 private:
  const LiveReport& report_;
  std::string run_;
  std::string name_;
  std::string text_;
};

std::string response(std::string_view status, std::string_view type, std::string_view body) {
  return fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\nCache-Control: no-store\r\n\r\n{}",
      status, type, body.size(), body);
}

}  // namespace

std::string as_metrics(const LiveReport& report) {
  using Rank = ReportedRank;
  MetricsWriter writer(report);
  writer.family("world_size", "Ranks of the job.");
  writer.value(report.facts.world_size);
  writer.family("members", "Ranks that are here, by state.");
  for (const char* const state : {"starting", "training", "left", "lost", "silent", "failed"}) {
    const auto count = std::ranges::count(report.ranks, state, &Rank::state);
    writer.value(static_cast<double>(count), fmt::format("state=\"{}\"", state));
  }
  writer.family("restarts_total", "Starts of the ranks before this one.");
  writer.value(report.facts.start - 1);
  writer.of_ranks("step", "Step that a rank is in.", &Rank::step);
  writer.of_ranks("steps_total", "Synchronised steps that a rank's process has ended.", &Rank::steps);
  writer.of_ranks("samples_total", "Samples of all ranks in these steps, as far as a rank knows.", &Rank::rows);
  writer.of_ranks("communication_waited_seconds_total", "Time that a rank waited for the others.", &Rank::waited_s);
  writer.of_ranks("communication_hidden_seconds_total", "Communication during a rank's backward.", &Rank::hidden_s);
  writer.of_ranks("resident_memory_bytes", "Memory of a rank's process.", &Rank::resident_bytes);
  writer.family("held_memory_bytes", "Part of a rank's memory that training holds, by purpose.");
  for (const Rank& rank : report.ranks) {
    for (std::size_t i = 0; i < trace::kHeld; ++i) {
      if (rank.held_bytes[i] <= 0) continue;
      writer.value(rank.held_bytes[i], fmt::format("{},for=\"{}\"", MetricsWriter::labels_of(rank),
                                                   trace::name_of(static_cast<trace::Held>(i))));
    }
  }
  writer.family("step_seconds", "The mean of a rank's last steps.");
  for (const Rank& rank : report.ranks) {
    if (rank.step_s > 0) writer.value(rank.step_s, MetricsWriter::labels_of(rank));
  }
  writer.family("step_share", "Share of a rank's last steps, by part of the step.");
  for (const Rank& rank : report.ranks) {
    for (std::size_t i = 0; i < rank.shares.size(); ++i) {
      writer.value(rank.shares[i],
                   fmt::format("{},phase=\"{}\"", MetricsWriter::labels_of(rank), name_of(static_cast<Phase>(i))));
    }
  }
  writer.of_ranks("loss", "Mean loss of the last step that reported one.", &Rank::loss);
  writer.family("scalar", "Newest value logged under a name: the mean over the ranks that log it.");
  for (const trace::Scalar& scalar : report.scalars) {
    writer.value(scalar.value, fmt::format("name=\"{}\"", label_value(scalar.name)));
  }
  writer.of_ranks("snapshot_age_seconds", "Time since a rank handed over its last snapshot.", &Rank::snapshot_age_s);
  writer.of_ranks("wrong_gradient_steps_total", "Steps in which a rank's own gradients had NaN or infinity.",
                  &Rank::wrong_steps);
  writer.family("first_finding_step", "Step in which a rank's numbers went wrong first.");
  for (const Rank& rank : report.ranks) {
    if (!rank.finding) continue;
    writer.value(static_cast<double>(rank.finding->step),
                 fmt::format("{},kind=\"{}\",parameter=\"{}\"", MetricsWriter::labels_of(rank),
                             trace::name_of(rank.finding->kind), label_value(rank.finding->parameter)));
  }
  writer.of_ranks("replicas_equal_step", "Last step in which the replicas are known to have been equal.",
                  &Rank::equal_in);
  writer.family("straggler_share", "Share of every step that the slowest rank costs the others.");
  if (report.straggler >= 0) writer.value(report.straggler_share, fmt::format("rank=\"{}\"", report.straggler));
  return writer.take();
}

std::string http_answer(std::string_view line, const LiveReport& report) {
  if (!line.ends_with(" HTTP/1.1") && !line.ends_with(" HTTP/1.0")) {
    return response("400 Bad Request", "text/plain", "this is HTTP/1.1: GET /metrics\n");
  }
  const std::string_view target = line.substr(0, line.rfind(' '));
  if (!target.starts_with("GET ")) return response("405 Method Not Allowed", "text/plain", "there is GET /metrics\n");
  if (target != "GET /metrics" && !target.starts_with("GET /metrics?")) {
    return response("404 Not Found", "text/plain", "there is /metrics\n");
  }
  return response("200 OK", "text/plain; version=0.0.4; charset=utf-8", as_metrics(report));
}

}  // namespace lockstep::launcher
