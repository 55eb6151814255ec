// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/nccl/flight_record.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::nccl {
namespace {

double seconds(std::chrono::steady_clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

void FlightRecord::called(std::uint64_t sequence, const comm::OpRecord& record) {
  MutexLock lock(mutex_);
  at(sequence) = {sequence, record, Clock::now(), {}, {}};
}

void FlightRecord::launched(std::uint64_t sequence) {
  MutexLock lock(mutex_);
  if (at(sequence).sequence == sequence) at(sequence).launched = Clock::now();
}

void FlightRecord::done(std::uint64_t sequence) {
  MutexLock lock(mutex_);
  if (at(sequence).sequence == sequence) at(sequence).done = Clock::now();
}

std::optional<comm::OpRecord> FlightRecord::find(std::uint64_t sequence) const {
  MutexLock lock(mutex_);
  const Entry& entry = entries_[sequence % kKept];
  if (sequence == 0 || entry.sequence != sequence) return std::nullopt;
  return entry.record;
}

std::vector<std::string> FlightRecord::lines(std::size_t most) const {
  MutexLock lock(mutex_);
  std::vector<const Entry*> kept;
  for (const Entry& entry : entries_) {
    if (entry.sequence != 0) kept.push_back(&entry);
  }
  std::sort(kept.begin(), kept.end(), [](const Entry* a, const Entry* b) { return a->sequence < b->sequence; });
  if (kept.size() > most) kept.erase(kept.begin(), kept.end() - static_cast<std::ptrdiff_t>(most));
  const auto now = Clock::now();
  std::vector<std::string> result;
  for (const Entry* entry : kept) {
    std::string text = fmt::format("{}: called {:.3f} s ago", comm::describe(entry->record, entry->sequence),
                                   seconds(now - entry->called));
    text += entry->launched ? fmt::format(", launched after {:.6f} s", seconds(*entry->launched - entry->called))
                            : ", not launched";
    text += entry->done ? fmt::format(", seen done after {:.6f} s", seconds(*entry->done - entry->called))
                        : ", not seen done";
    result.push_back(text);
  }
  return result;
}

}  // namespace lockstep::nccl
