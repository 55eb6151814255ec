// SPDX-License-Identifier: Apache-2.0
// Cause is the cause of a group's failure, as data: a backend records the cause, the job's membership sends it to all
// ranks, and the launcher judges it.
//
// A cause is evidence if a rank reports its own failure, or the launcher reports the failure of its own child. A cause
// is an accusation if a rank reports the failure of another rank. The text is for people; no code parses the text.
//
// Threads: causes are values, which any thread may use.
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
    // No failure: the ranks have agreed to end their training (comm/stop.h), and the group continues.
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
  // Returns the cause for messages on rank `own`. If another rank or the store reports the failure of `own`, the text
  // begins with this fact.
  Cause as_read_by(int own) const;
};

LOCKSTEP_API std::string_view name_of(Cause::Kind kind);

// Encodes a cause as a record (base/record.h), with the text last. If the record is longer than `most_bytes` (at least
// 768), encode() cuts the text between two characters, and appends " ...". Control characters of the text, except
// newlines, become '?'.
LOCKSTEP_API std::string encode(const Cause& cause, std::size_t most_bytes = std::size_t{1} << 16);
// Decodes a cause. Returns nullopt if encode() did not make the bytes.
LOCKSTEP_API std::optional<Cause> decode_cause(std::string_view bytes);

// Throws an error of the type of `error`, which is a PeerLost, Timeout or Mismatch, with the message `text`. Handlers
// of `error` call this function to add their knowledge. The new error keeps the cause, with `text` as its text, and
// with `step` and `bucket` if the cause has none. If `error` has another type, the function rethrows it unchanged.
[[noreturn]] LOCKSTEP_API void throw_again(const Error& error, std::string_view text, std::int64_t step = -1,
                                           int bucket = -1);

// Makes an error of type E with the cause, and with the cause's text as message: make_error<PeerLost>(cause).
template <typename E>
E make_error(const Cause& cause) {
  return E(cause.text, std::make_shared<const Cause>(cause));
}

// Throws an error with the cause and its text: Timeout or Mismatch for causes of these kinds, PeerLost for all
// other kinds.
[[noreturn]] LOCKSTEP_API void throw_error(const Cause& cause);

}  // namespace lockstep
