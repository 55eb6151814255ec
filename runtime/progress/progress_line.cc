// SPDX-License-Identifier: Apache-2.0
#include "runtime/progress/progress_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/printable.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using Nanoseconds = std::chrono::nanoseconds;

double seconds(ProgressLine::Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

std::string bar(std::int64_t steps, std::int64_t total) {
  constexpr std::int64_t kWidth = 20;
  const auto full = static_cast<std::size_t>(kWidth * std::min(steps, total) / total);
  return "[" + std::string(full, '#') + std::string(kWidth - full, '.') + "]";
}

// The program's own come before those that the library logs in each step; the loss is shown anyway.
std::string newest_of(std::vector<trace::Scalar> scalars) {
  constexpr std::size_t kMost = 3;
  std::erase_if(scalars, [](const auto& one) { return one.name == "loss"; });
  std::stable_partition(scalars.begin(), scalars.end(),
                        [](const auto& one) { return one.name != "lr" && one.name != "grad_norm"; });
  scalars.resize(std::min(scalars.size(), kMost));
  std::ranges::sort(scalars, {}, &trace::Scalar::name);
  std::string text;
  for (const trace::Scalar& scalar : scalars) text += fmt::format("  {} {:.4g}", scalar.name, scalar.value);
  return text;
}

}  // namespace

ProgressMode choose_progress_mode(const Environment& environment, int rank, bool terminal) {
  const auto wish = environment.get("LOCKSTEP_PROGRESS");
  if (wish && *wish != "bar" && *wish != "lines" && *wish != "off") {
    throw InvalidArgument(
        fmt::format("environment: LOCKSTEP_PROGRESS='{}' is unknown; use bar, lines or off", printable(*wish)));
  }
  if (rank != 0 || wish == "off") return ProgressMode::off;
  if (wish == "lines") return ProgressMode::lines;
  if (terminal) return ProgressMode::terminal;
  return wish == "bar" || environment.has("LOCKSTEP_RUN_ID") ? ProgressMode::redraws : ProgressMode::lines;
}

ProgressLine::ProgressLine(ProgressMode mode, std::int64_t total, Clock::time_point begin, Write write,
                           std::int64_t last_batch, std::int64_t last_record, Scalars scalars)
    : mode_(mode),
      total_(total),
      begin_(begin),
      write_(std::move(write)),
      scalars_(std::move(scalars)),
      last_batch_(last_batch),
      summary_(last_record) {}

std::optional<Nanoseconds> ProgressLine::left(Clock::time_point now) const {
  if (total_ <= steps_ || steps_ == 0) return std::nullopt;
  const double ns = seconds(now - begin_) * 1e9 / static_cast<double>(steps_) * static_cast<double>(total_ - steps_);
  if (!(ns < 9e18)) return std::nullopt;  // centuries, which Nanoseconds can't hold
  return Nanoseconds(std::llround(ns));
}

std::string ProgressLine::text(Clock::time_point now) const {
  const double elapsed = seconds(now - begin_);
  std::string text = total_ > 0 ? fmt::format("step {}/{}", steps_, total_) : fmt::format("step {}", steps_);
  if (total_ > 0 && mode_ != ProgressMode::lines) text += " " + bar(steps_, total_);
  // First of what a narrow terminal may cut off.
  if (const auto time = left(now)) text += fmt::format("  {} left", trace::format_left(*time));
  if (loss_) text += fmt::format("  loss {:.4f}", *loss_);
  if (scalars_) text += newest_of(scalars_());
  if (samples_ > 0 && elapsed > 0) text += fmt::format("  {:.0f} samples/s", static_cast<double>(samples_) / elapsed);
  if (summary_.steps() > 0) text += "  " + summary_.line();
  return text;
}

void ProgressLine::step(const ProgressStep& step, Clock::time_point now) {
  ++steps_;
  samples_ += step.samples;
  if (step.loss) loss_ = step.loss;
  if (step.record != nullptr) summary_.add(*step.record);
  if (mode_ == ProgressMode::off) return;
  const auto interval = mode_ == ProgressMode::lines ? milliseconds(2000) : milliseconds(100);
  if (drawn_ && now - *drawn_ < interval) return;
  drawn_ = now;
  const std::string drawn = text(now);
  if (mode_ == ProgressMode::lines) {
    write_(drawn + "\n");
    return;
  }
  // On a terminal what is left of a longer bar is overwritten; the launcher does that itself.
  const std::size_t padding = mode_ == ProgressMode::terminal && width_ > drawn.size() ? width_ - drawn.size() : 0;
  write_(drawn + std::string(padding, ' ') + "\r");
  width_ = drawn.size();
}

void ProgressLine::step(const GlobalBatch& batch, const trace::StepRecord& record, Clock::time_point now) {
  // On a device several steps may become known at once, and the last of them is told: the others count as it does.
  const std::int64_t fresh = std::max<std::int64_t>(batch.step - last_batch_, 0);
  last_batch_ += fresh;
  step({.loss = fresh > 0 ? batch.loss : std::nullopt, .samples = fresh * batch.weight, .record = &record}, now);
}

void ProgressLine::line(std::string_view text) {
  const bool covers = mode_ == ProgressMode::terminal && width_ > text.size();
  write_(std::string(text) + std::string(covers ? width_ - text.size() : 0, ' ') + "\n");
  width_ = 0;
}

void ProgressLine::note(std::string_view text) {
  if (mode_ != ProgressMode::off) line(text);
}

void ProgressLine::finish(Clock::time_point now) {
  if (std::exchange(finished_, true) || mode_ == ProgressMode::off || steps_ == 0) return;
  line(text(now));
  if (summary_.steps() > 0) line(summary_.report());
}

}  // namespace lockstep
