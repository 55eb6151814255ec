// SPDX-License-Identifier: Apache-2.0
#include "runtime/trace/totals_keeper.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "lockstep/base/environment.h"
#include "runtime/base/procfs.h"

namespace lockstep::trace {
namespace {

// 0 if the kernel does not say it.
std::int64_t resident_bytes() {
  const std::string text = read_kernel_file("/proc/self/statm");  // "SIZE RESIDENT ..." in pages
  const auto begin = std::min(text.find(' '), text.size());
  std::string_view rest = std::string_view(text).substr(begin);
  rest.remove_prefix(std::min<std::size_t>(rest.size(), 1));
  return parse_int(rest.substr(0, rest.find(' '))).value_or(0) * sysconf(_SC_PAGESIZE);
}

}  // namespace

void TotalsKeeper::begin_span(std::int64_t now) noexcept {
  if (step_ended_.load(std::memory_order_relaxed) == 0) return;
  if (const std::int64_t ended = step_ended_.exchange(0, std::memory_order_relaxed); ended != 0) {
    after_steps_.fetch_add(std::max<std::int64_t>(now - ended, 0), std::memory_order_relaxed);
  }
}

void TotalsKeeper::end_span(SpanKind kind, std::int64_t own, std::int64_t now) noexcept {
  spans_[static_cast<std::size_t>(kind)].fetch_add(std::max<std::int64_t>(own, 0), std::memory_order_relaxed);
  if (kind == SpanKind::snapshot) snapshot_at_.store(now, std::memory_order_relaxed);
}

void TotalsKeeper::end_step(const StepRecord& record, bool on_device) noexcept {
  const auto ns = [](Time time) { return std::chrono::nanoseconds(time.time_since_epoch()).count(); };
  MutexLock lock(mutex_);
  totals_.steps += 1;
  totals_.on_device += on_device ? 1 : 0;
  totals_.until = ns(record.end);
  totals_.in_steps += ns(record.end) - ns(record.begin);
  totals_.waited += record.waited.count();
  totals_.hidden += record.hidden.count();
  totals_.after_steps = after_steps_.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < spans_.size(); ++i) totals_.spans[i] = spans_[i].load(std::memory_order_relaxed);
  step_ended_.store(totals_.until, std::memory_order_relaxed);
}

void TotalsKeeper::add_batch(std::int64_t rows, std::optional<double> loss) noexcept {
  MutexLock lock(mutex_);
  totals_.rows += rows;
  if (loss) totals_.loss = loss;
}

void TotalsKeeper::add_wrong_step() noexcept {
  MutexLock lock(mutex_);
  totals_.wrong_steps += 1;
}

void TotalsKeeper::add_finding(const Finding& finding) {
  MutexLock lock(mutex_);
  if (totals_.finding) return;
  totals_.finding = finding;
  totals_.finding->time = 0;
}

void TotalsKeeper::set_equal_in(std::int64_t step) noexcept {
  MutexLock lock(mutex_);
  totals_.equal_in = step;
}

RankTotals TotalsKeeper::totals(std::int64_t now) const {
  RankTotals totals;
  {
    MutexLock lock(mutex_);
    totals = totals_;
  }
  totals.resident = resident_bytes();
  totals.left = left_.load(std::memory_order_relaxed);
  if (const std::int64_t at = snapshot_at_.load(std::memory_order_relaxed); at != 0) {
    totals.snapshot_age = std::max<std::int64_t>(now - at, 0);
  }
  return totals;
}

}  // namespace lockstep::trace
