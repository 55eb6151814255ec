// SPDX-License-Identifier: Apache-2.0
// The last things that a group did, for whoever asks what it was doing when it ended.
//
// Threads: any. In memory; costs two clock readings per collective.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/comm/op_record.h"

namespace lockstep::nccl {

class FlightRecord {
 public:
  static constexpr std::size_t kKept = 512;

  void called(std::uint64_t sequence, const comm::OpRecord& record);
  void launched(std::uint64_t sequence);
  void done(std::uint64_t sequence);

  // The collective with this number, if it is among those kept.
  std::optional<comm::OpRecord> find(std::uint64_t sequence) const;
  // "all_reduce 17 (sum, 1000 x float32): called 5.2 s ago, launched after 40 us, not done", oldest first; the last of
  // them.
  std::vector<std::string> lines(std::size_t most = 32) const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    std::uint64_t sequence = 0;  // 0: none yet
    comm::OpRecord record;
    Clock::time_point called;
    std::optional<Clock::time_point> launched;
    std::optional<Clock::time_point> done;
  };
  Entry& at(std::uint64_t sequence) REQUIRES(mutex_) { return entries_[sequence % kKept]; }

  mutable Mutex mutex_;
  std::array<Entry, kKept> entries_ GUARDED_BY(mutex_);
};

}  // namespace lockstep::nccl
