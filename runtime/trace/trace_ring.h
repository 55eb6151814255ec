// SPDX-License-Identifier: Apache-2.0
// The last events of a rank, in memory that outlives it.
//
// In a file the ring is mapped: what was put there before a SIGKILL is there after it, and another process reads it
// while the rank runs. All of the file is allocated when it is made, so that a full disk is an error then and no SIGBUS
// later. A file has 64-bit words, little-endian:
//
//   0  "LOCKTRC2"      4  world size              7  process id
//   1  events, 2^k     5  events put so far       8  steps that earlier runs have done
//   2  wall clock      6  findings so far         9  when the file was made
//   3  rank           10..12   the most bytes held, by Held (held_memory.h)
//                      16..79   name of the host, ends with a 0
//                      80..143  run id, ends with a 0
//                      144 + 8 i  finding number i, of 46: the first ones stay
//                      512..575   the process's command, ends with a 0
//                      576 + 8 i  event number s in slot i = s mod 2^k
//   behind the events: the scalars (scalar_table.h)
//
// Word 2 is CLOCK_REALTIME less CLOCK_MONOTONIC when the file was made, in ns: what is added to an event's times to
// compare hosts, as well as their wall clocks agree. Word 9 is CLOCK_MONOTONIC's. A slot's first word is s + 1, or 0
// while it is written; seven words follow, of which rank_trace.h knows the meaning. Findings have slots like events',
// and are not replaced: where numbers went wrong first is what a run is asked for at its end.
//
// Threads: any may put, without a lock. A thread that stands still in put() for a whole round of the ring may leave an
// event that is mixed of two.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/unique_fd.h"
#include "runtime/trace/held_memory.h"
#include "runtime/trace/scalar_table.h"

namespace lockstep::trace {

struct TraceIdentity {
  int rank = 0;
  int world_size = 1;
  std::int64_t pid = 0;
  std::string host = {};     // up to 511 bytes
  std::string run_id = {};   // up to 511 bytes
  std::string command = {};  // up to 511 bytes
};

class TraceRing {
 public:
  // Of 64 bytes each.
  static constexpr std::size_t kEvents = 16384;
  static constexpr std::size_t kMostFindings = 46;
  using Words = std::array<std::uint64_t, 7>;

  struct Contents {
    TraceIdentity identity = {};
    std::int64_t wall_clock = 0;    // word 2
    std::int64_t began = 0;         // word 9
    std::int64_t steps_before = 0;  // word 8
    HeldBytes held = {};            // words 10 to 12: the most
    std::uint64_t lost = 0;         // events that newer ones have replaced
    std::vector<Words> events = {};
    std::vector<Words> findings = {};
    std::vector<ScalarSeries> scalars = {};
  };

  // In a new file, in the place of the old one; an empty path: in this process's memory, where others find it as
  // /memfd:lockstep-trace among its descriptors. `events` is a power of 2. Throws SystemError.
  TraceRing(const std::string& path, const TraceIdentity& identity, std::size_t events = kEvents);
  ~TraceRing();
  TraceRing(const TraceRing&) = delete;
  TraceRing& operator=(const TraceRing&) = delete;

  void put(const Words& words) noexcept;
  // Nothing if there are kMostFindings already.
  void put_finding(const Words& words) noexcept;
  void set_steps_before(std::int64_t steps) noexcept;
  // Keeps the largest number: a process that ends in order has given all back before its trace is read.
  void raise_held(Held held, std::int64_t bytes) noexcept;
  ScalarTable& scalars() { return *scalars_; }

  // While others put, too.
  Contents read() const;
  // Throws SystemError, and CorruptData if the file is not a trace.
  static Contents read_file(const std::string& path);

 private:
  UniqueFd file_;  // open for the sake of who looks for it in this process; nothing for a file with a name
  std::atomic<std::uint64_t>* words_ = nullptr;  // mapped
  std::size_t events_;
  std::optional<ScalarTable> scalars_;
};

// The file of the trace of a process of this user that has it in its memory; empty: it has none.
std::string trace_in_memory_of(int pid);

}  // namespace lockstep::trace
