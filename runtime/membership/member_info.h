// SPDX-License-Identifier: Apache-2.0
// A member of a scope: its rank, process and position, and how they go over the wire. Pure, but for of_this_process().
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/process_state.h"

namespace lockstep::membership {

// The largest world size, for every way to give one. Each rank holds two connections to the job's store, and a server
// takes twice as many clients (store::kMaxClients).
inline constexpr int kMaxWorldSize = 32768;

// The kernel ends a connection with a member, or with its server, whose host is silent for so long. Longer than what
// makes a member silent, which says more.
inline constexpr std::chrono::seconds kDeadHost{10};

struct ProcessInfo {
  std::string host = {};           // host name, for people
  int pid = 0;                     // in its own pid namespace
  std::string boot_id = {};        // which kernel (base/host.h)
  std::string pid_namespace = {};  // which pid namespace of it; may be empty

  static ProcessInfo of_this_process();
  bool operator==(const ProcessInfo&) const = default;
  // "host node7, pid 4711", for messages.
  std::string describe() const;
  // True if `other`'s pid means something here.
  bool shares_pids_with(const ProcessInfo& other) const;
};

// A record (base/record.h).
std::string encode(const ProcessInfo& info);
// nullopt if the text is not encode()'s. Lines with other names are passed over: a later version may have more. The
// result may be printed: its texts hold at most 255 printable characters.
std::optional<ProcessInfo> decode_process_info(std::string_view text);

// How `other` is, as far as the process `self` can know: unknown on another host or in another pid namespace.
ProcessState state_of(const ProcessInfo& other, const ProcessInfo& self);

// A member's position in its program, from its heartbeats.
struct MemberPosition {
  std::int64_t sequence = 0;    // of the collective that it started last, from 1; 0: none
  std::string collective = {};  // that one's name: "all_reduce"; empty: not known
  std::int64_t step = -1;       // that the Reducer is in, from 0; -1: none
  std::int64_t steps_done = 0;  // by this run and those that it resumed
  std::string totals = {};      // where its time went (trace/rank_totals.h), a word that is only passed on

  bool operator==(const MemberPosition&) const = default;
  // "collective 41 (all_reduce, step 12)", or as much of it as is known.
  std::string describe() const;
};

// All but the sequence as HEARTBEAT's flags, words divided by blanks: "in=all_reduce step=12 done=512 totals=12,0,7".
std::string flags_of(const MemberPosition& position);
// From flags that came over the wire; unknown words are passed over. `traced` is set if they say so.
MemberPosition position_of(std::int64_t sequence, std::string_view flags, bool& traced);

struct MemberInfo {
  int rank = 0;
  int world_size = 1;
  ProcessInfo process = {};

  // "rank 2 (host node7, pid 4711)".
  std::string describe() const;
};

}  // namespace lockstep::membership
