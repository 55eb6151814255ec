// SPDX-License-Identifier: Apache-2.0
#include "runtime/trace/process_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <exception>
#include <filesystem>
#include <limits>
#include <memory>
#include <system_error>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/owner_process.h"
#include "runtime/base/logging.h"
#include "runtime/base/mutex.h"
#include "runtime/trace/held_memory.h"
#include "runtime/trace/rank_trace.h"
#include "runtime/trace/totals_keeper.h"

namespace lockstep::trace {
namespace {

struct ProcessTrace {
  TraceRing ring;
  OwnerProcess owner = {};
};

// Never let go of: a thread may have a span when the process ends.
std::atomic<ProcessTrace*> the_trace{nullptr};
std::atomic<bool> is_switched_on{true};
std::atomic<std::int64_t> steps_kept{0};
std::atomic<std::int64_t> steps_done{0};
std::atomic<std::int64_t> steps_before{0};
std::atomic<std::uint64_t> scalars_dropped{0};
std::array<std::atomic<std::int64_t>, kHeld> held_bytes{};
std::atomic<int> threads_seen{0};
thread_local std::uint32_t open_kinds = 0;  // bit k: a span of kind k is open
thread_local std::int64_t within = 0;       // ns of the library's spans that were over within the one that is open

constexpr int kMostThreads = 255;

int thread_number() {
  thread_local const int number = std::min(threads_seen.fetch_add(1, std::memory_order_relaxed), kMostThreads);
  return number;
}

// Null: nothing is kept.
TraceRing* ring() noexcept {
  ProcessTrace* const trace = the_trace.load(std::memory_order_acquire);
  if (trace == nullptr || !trace->owner.is_here() || !is_switched_on.load(std::memory_order_relaxed)) return nullptr;
  return &trace->ring;
}

std::int64_t ns(Time time) { return std::chrono::nanoseconds(time.time_since_epoch()).count(); }

// Never let go of, as the trace.
TotalsKeeper& totals_keeper() {
  static TotalsKeeper* const keeper = new TotalsKeeper;
  return *keeper;
}

std::uint32_t bit_of(SpanKind kind) { return std::uint32_t{1} << static_cast<unsigned>(kind); }

std::unique_ptr<ProcessTrace> make_trace(const TraceIdentity& identity, const std::string& folder) {
  if (!folder.empty()) {
    try {
      std::error_code error;
      std::filesystem::create_directories(folder, error);
      if (error) throw SystemError("make the folder " + folder, error.value());
      return std::unique_ptr<ProcessTrace>(new ProcessTrace{.ring{trace_file(folder, identity.rank), identity}});
    } catch (const SystemError& error) {
      log_warn(
          "trace: {}; this rank's trace is not written to a file: set LOCKSTEP_TRACE_DIR to a folder that this process "
          "can write",
          error.what());
    }
  }
  return std::unique_ptr<ProcessTrace>(new ProcessTrace{.ring{"", identity}});
}

}  // namespace

std::string trace_file(const std::string& folder, int rank) { return fmt::format("{}/rank{}.trace", folder, rank); }

void open_trace(const TraceIdentity& identity, const std::string& folder) {
  static Mutex opening;
  MutexLock lock(opening);
  const ProcessTrace* const before = the_trace.load(std::memory_order_acquire);
  if (before != nullptr && before->owner.is_here()) return;
  try {
    the_trace.store(make_trace(identity, folder).release(), std::memory_order_release);
  } catch (const SystemError& error) {
    log_warn(
        "trace: {}; this rank keeps no trace of its steps, and the run continues; correct this cause to get a trace",
        error.what());
  }
}

void keep_step(const StepRecord& record, bool on_device) noexcept {
  const std::int64_t number = steps_kept.fetch_add(1, std::memory_order_relaxed);
  TraceRing* const to = ring();
  if (to == nullptr) return;
  totals_keeper().end_step(record, on_device);
  to->put(words_of(TracedStep{.number = number,
                              .step = record.step,
                              .on_device = on_device,
                              .begin = ns(record.begin),
                              .last_gradient_ready = ns(record.last_gradient_ready),
                              .end = ns(record.end),
                              .waited = record.waited.count(),
                              .hidden = record.hidden.count()}));
  for (const BucketRecord& bucket : record.buckets) {
    to->put(words_of(TracedBucket{.bytes = static_cast<std::int64_t>(bucket.bytes),
                                  .ready = ns(bucket.ready),
                                  .launched = ns(bucket.launched),
                                  .finished = ns(bucket.finished),
                                  .gradients_ready = bucket.gradients_ready},
                     number));
  }
}

void keep_batch(std::int64_t step, std::int64_t weight, std::optional<double> loss) noexcept {
  TraceRing* const to = ring();
  if (to == nullptr) return;
  totals_keeper().add_batch(weight, loss);
  to->put(words_of_batch(step, weight, loss));
  try {
    if (loss) keep_scalar("loss", *loss, steps_before.load(std::memory_order_relaxed) + step + 1);
  } catch (const std::exception&) {  // no memory, for the name or a warning: the batch has the loss, too
  }
}

void keep_span(SpanKind kind, Time begin, Time end) noexcept {
  TraceRing* const to = ring();
  if (to == nullptr) return;
  totals_keeper().end_span(kind, ns(end) - ns(begin), ns(end));
  to->put(words_of_span(kind, thread_number(), ns(begin), ns(end), {}));
}

void keep_wrong_step() noexcept {
  if (ring() != nullptr) totals_keeper().add_wrong_step();
}

void keep_finding(Finding finding) {
  TraceRing* const to = ring();
  if (to == nullptr) return;
  finding.time = ns(std::chrono::steady_clock::now());
  totals_keeper().add_finding(finding);
  to->put_finding(words_of(finding));
}

void keep_equal(std::int64_t step) noexcept {
  if (ring() != nullptr) totals_keeper().set_equal_in(step);
}

void keep_steps_done(std::int64_t done, std::int64_t before) noexcept {
  steps_done.store(done, std::memory_order_relaxed);
  steps_before.store(before, std::memory_order_relaxed);
  if (TraceRing* const to = ring()) to->set_steps_before(before);
}

void keep_scalar(std::string_view name, double value, std::optional<std::int64_t> step) {
  TraceRing* const to = ring();
  if (to == nullptr) return;
  const ScalarPoint point{.step = step.value_or(steps_done.load(std::memory_order_relaxed)),
                          .value = std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value,
                          .time = ns(std::chrono::steady_clock::now())};
  if (to->scalars().put(name, point)) return;
  const std::uint64_t dropped = scalars_dropped.fetch_add(1, std::memory_order_relaxed) + 1;
  if (!std::has_single_bit(dropped)) return;
  log_warn(
      "log_scalar: {} dropped, the last of '{}': a rank keeps only the values of the first {} names; log fewer names",
      dropped == 1 ? "a value is" : fmt::format("{} values are", dropped), name, ScalarTable::kMostNames);
}

std::vector<Scalar> newest_scalars() {
  TraceRing* const from = ring();
  return from == nullptr ? std::vector<Scalar>() : from->scalars().newest();
}

void HeldMemory::set(std::int64_t bytes) noexcept {
  const std::int64_t more = bytes - std::exchange(bytes_, bytes);
  const std::int64_t all =
      held_bytes[static_cast<std::size_t>(held_)].fetch_add(more, std::memory_order_relaxed) + more;
  if (TraceRing* const to = ring()) to->raise_held(held_, all);
}

void keep_left(std::int64_t time) noexcept {
  if (ring() != nullptr) totals_keeper().set_left(time);
}

void switch_trace(bool is_on) noexcept { is_switched_on.store(is_on, std::memory_order_relaxed); }

std::optional<TraceRing::Contents> contents_of_trace() {
  const ProcessTrace* const trace = the_trace.load(std::memory_order_acquire);
  if (trace == nullptr) return std::nullopt;
  return trace->ring.read();
}

RankTotals totals() {
  RankTotals totals = totals_keeper().totals(ns(std::chrono::steady_clock::now()));
  for (std::size_t i = 0; i < kHeld; ++i) totals.held[i] = held_bytes[i].load(std::memory_order_relaxed);
  totals.scalars = newest_scalars();
  return totals;
}

Span::Span(SpanKind kind, std::string_view name) noexcept : name_(name), kind_(kind), is_kept_(ring() != nullptr) {
  const bool is_ours = kind != SpanKind::program;
  if (is_ours && (open_kinds & bit_of(kind)) != 0) is_kept_ = false;
  if (!is_kept_) return;
  begin_ = std::chrono::steady_clock::now();
  if (!is_ours) return;
  open_kinds |= bit_of(kind);
  before_ = within;
  within = 0;
  totals_keeper().begin_span(ns(begin_));
}

Span::~Span() {
  if (!is_kept_) return;
  const Time end = std::chrono::steady_clock::now();
  const std::int64_t length = ns(end) - ns(begin_);
  const std::int64_t own = length - within;
  if (kind_ != SpanKind::program) {
    open_kinds &= ~bit_of(kind_);
    within = before_ + length;
  }
  TraceRing* const to = ring();
  if (to == nullptr) return;
  if (kind_ != SpanKind::program) totals_keeper().end_span(kind_, own, ns(end));
  to->put(words_of_span(kind_, thread_number(), ns(begin_), ns(end), name_));
}

}  // namespace lockstep::trace
