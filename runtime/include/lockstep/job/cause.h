// SPDX-License-Identifier: Apache-2.0
// Cause describes why a group has failed, as data. A backend records the cause, the job's membership sends the cause to
// all ranks, and the launcher judges from the cause which process is at fault.
//
// A cause is evidence if a rank reports its own failure, or the launcher reports the failure of its own child
// process. A cause is an accusation if a rank reports the failure of another rank. Cause::text is for people; no code
// parses Cause::text.
//
// Threads: a Cause is a value, which any thread may use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/api.h"

namespace lockstep {

class Error;

struct LOCKSTEP_API Cause {
  enum class Kind : std::uint8_t {
    lost = 1,  // the process ended without a goodbye
    silent,    // the process stopped answering: stopped, frozen, or cut off
    left,      // the rank said goodbye before a collective for which other ranks wait
    failed,    // the rank failed by its own exception or its device
    aborted,   // the program called abort()
    timeout,   // a deadline passed
    mismatch,  // the ranks' calls or models differ
    // Kind::stopped is no failure: the ranks have agreed to end their training (comm/stop.h), and the group continues.
    stopped,
  };

  Kind kind = Kind::lost;
  int rank = -1;               // the rank that failed; -1: not a single rank
  int reporter = -1;           // the rank that reports the failure; -1: the launcher, or the job's store
  std::string host = {};       // the host of `rank`; empty: not known
  int pid = 0;                 // the process of `rank`; 0: not known
  int restarts = 0;            // the number of the job's restarts
  std::int64_t step = -1;      // the Reducer's step, from 0; -1: not known
  int bucket = -1;             // the Reducer's bucket; -1: none
  std::int64_t sequence = -1;  // the collective's number, from 1; 0: before the first collective; -1: not known
  int error_number = 0;        // errno; 0: none
  int signal = 0;              // the signal that ended or stopped the process; 0: none, or not known
  bool ends_group = true;      // if false, the group continues, but the launcher still gets the cause
  std::string text = {};       // a whole sentence, with the rank concerned and a remedy

  bool operator==(const Cause&) const = default;
  // Returns whether one rank reports the failure of another rank.
  bool is_accusation() const { return reporter != rank && rank >= 0 && reporter >= 0; }
  // Returns a copy of the cause, for use in messages on rank `own`. If another rank or the store reports the failure of
  // rank `own`, the copy's text begins with a note about this report.
  Cause as_read_by(int own) const;
};

LOCKSTEP_API std::string_view name_of(Cause::Kind kind);

// Encodes a cause as a record (base/record.h), in which the cause's text comes last. If the record is longer than
// `most_bytes` (at least 768), encode() cuts the text between two characters, and appends " ...". In the record's text
// encode() replaces control characters, except newlines, by '?'.
LOCKSTEP_API std::string encode(const Cause& cause, std::size_t most_bytes = std::size_t{1} << 16);
// Decodes a cause. Returns nullopt if `bytes` are not a record that encode() made.
LOCKSTEP_API std::optional<Cause> decode_cause(std::string_view bytes);

// Throws an error that has the type of `error` (PeerLost, Timeout or Mismatch) and the message `text`. A handler that
// catches `error` calls throw_again() to add details to the message. The new error holds the cause of `error`, with
// `text` as the cause's text; throw_again() sets the cause's step and bucket to `step` and `bucket` if they are not set
// yet. If `error` has another type, throw_again() rethrows `error` unchanged.
[[noreturn]] LOCKSTEP_API void throw_again(const Error& error, std::string_view text, std::int64_t step = -1,
                                           int bucket = -1);

// Makes an error of type E that holds `cause` and has the cause's text as its message: make_error<PeerLost>(cause).
template <typename E>
E make_error(const Cause& cause) {
  return E(cause.text, std::make_shared<const Cause>(cause));
}

// Throws an error that holds `cause` and has the cause's text as its message. The error is a Timeout for Kind::timeout,
// a Mismatch for Kind::mismatch, and a PeerLost for all other kinds.
[[noreturn]] LOCKSTEP_API void throw_error(const Cause& cause);

}  // namespace lockstep
