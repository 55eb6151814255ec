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

class MetricsWriter {
 public:
  explicit MetricsWriter(const std::string& run_id) : run_(label_value(run_id)) {}

  void family(std::string_view name, std::string_view type, std::string_view help) {
    name_ = fmt::format("lockstep_{}", name);
    text_ += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name_, help, type);
  }
  void value(double value, std::string_view labels = {}) {
    text_ += fmt::format("{}{{run=\"{}\"{}{}}} {}\n", name_, run_, labels.empty() ? "" : ",", labels,
                         std::isnan(value) ? "NaN" : fmt::format("{}", value));
  }
  // Adds a sample for each rank that has a value.
  template <typename Value>
  void of_ranks(const LiveReport& report, Value value_of) {
    for (const ReportedRank& rank : report.ranks) {
      if (const std::optional<double> found = value_of(rank)) value(*found, labels_of(rank));
    }
  }
  static std::string labels_of(const ReportedRank& rank) {
    return fmt::format("rank=\"{}\",host=\"{}\"", rank.rank, label_value(rank.host));
  }
  std::string take() { return std::move(text_); }

 private:
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
  MetricsWriter writer(report.facts.run_id);
  writer.family("world_size", "gauge", "Ranks of the job.");
  writer.value(report.facts.world_size);
  writer.family("members", "gauge", "Ranks that are here, by state.");
  for (const char* const state : {"starting", "training", "left", "lost", "silent", "failed"}) {
    double count = 0;
    for (const ReportedRank& rank : report.ranks) count += rank.state == state ? 1 : 0;
    writer.value(count, fmt::format("state=\"{}\"", state));
  }
  writer.family("restarts_total", "counter", "Starts of the ranks before this one.");
  writer.value(report.facts.generation);
  writer.family("step", "gauge", "Step that a rank is in.");
  writer.of_ranks(report, [](const ReportedRank& rank) {
    return rank.step < 0 ? std::nullopt : std::optional<double>(static_cast<double>(rank.step));
  });
  const auto of_training = [](double ReportedRank::*field) {
    return [field](const ReportedRank& rank) {
      return rank.steps > 0 ? std::optional<double>(rank.*field) : std::nullopt;
    };
  };
  writer.family("steps_total", "counter", "Synchronised steps that a rank's process has ended.");
  writer.of_ranks(report, of_training(&ReportedRank::steps));
  writer.family("samples_total", "counter", "Samples of all ranks in these steps, as far as a rank knows.");
  writer.of_ranks(report, of_training(&ReportedRank::rows));
  writer.family("communication_waited_seconds_total", "counter", "Time that a rank waited for the others.");
  writer.of_ranks(report, of_training(&ReportedRank::waited_s));
  writer.family("communication_hidden_seconds_total", "counter", "Communication behind a rank's backward.");
  writer.of_ranks(report, of_training(&ReportedRank::hidden_s));
  writer.family("resident_memory_bytes", "gauge", "Memory of a rank's process.");
  writer.of_ranks(report, of_training(&ReportedRank::resident_bytes));
  writer.family("held_memory_bytes", "gauge", "Part of a rank's memory that training holds, by what for.");
  for (const ReportedRank& rank : report.ranks) {
    for (std::size_t i = 0; i < trace::kHeld; ++i) {
      if (rank.held_bytes[i] <= 0) continue;
      writer.value(rank.held_bytes[i], fmt::format("{},for=\"{}\"", MetricsWriter::labels_of(rank),
                                                   trace::name_of(static_cast<trace::Held>(i))));
    }
  }
  writer.family("step_seconds", "gauge", "The mean of a rank's last steps.");
  writer.of_ranks(report,
                  [](const ReportedRank& rank) { return rank.step_s > 0 ? std::optional(rank.step_s) : std::nullopt; });
  writer.family("step_share", "gauge", "Share of a rank's last steps, by what the time went to.");
  for (const ReportedRank& rank : report.ranks) {
    for (std::size_t i = 0; i < rank.shares.size(); ++i) {
      writer.value(rank.shares[i],
                   fmt::format("{},phase=\"{}\"", MetricsWriter::labels_of(rank), name_of(static_cast<Phase>(i))));
    }
  }
  writer.family("loss", "gauge", "Mean loss of the last step that told it.");
  writer.of_ranks(report, [](const ReportedRank& rank) { return rank.loss; });
  writer.family("scalar", "gauge", "Newest value that was logged by a name: the mean over the ranks that log it.");
  for (const trace::Scalar& scalar : report.scalars) {
    writer.value(scalar.value, fmt::format("name=\"{}\"", label_value(scalar.name)));
  }
  writer.family("snapshot_age_seconds", "gauge", "Since a rank handed over its last snapshot.");
  writer.of_ranks(report, [](const ReportedRank& rank) { return rank.snapshot_age_s; });
  writer.family("wrong_gradient_steps_total", "counter", "Steps in which a rank's own gradients had NaN or infinity.");
  writer.of_ranks(report, of_training(&ReportedRank::wrong_steps));
  writer.family("first_finding_step", "gauge", "Step in which a rank's numbers went wrong first.");
  for (const ReportedRank& rank : report.ranks) {
    if (!rank.finding) continue;
    writer.value(static_cast<double>(rank.finding->step),
                 fmt::format("{},kind=\"{}\",parameter=\"{}\"", MetricsWriter::labels_of(rank),
                             trace::name_of(rank.finding->kind), label_value(rank.finding->parameter)));
  }
  writer.family("replicas_equal_step", "gauge", "Last step in which the replicas are known to have been equal.");
  writer.of_ranks(report, [](const ReportedRank& rank) {
    return rank.equal_in < 0 ? std::nullopt : std::optional<double>(static_cast<double>(rank.equal_in));
  });
  writer.family("straggler_share", "gauge", "Share of every step that the slowest rank costs the others.");
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
