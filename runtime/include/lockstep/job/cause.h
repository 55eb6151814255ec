// SPDX-License-Identifier: Apache-2.0
// Cause is the cause of a group's failure, as data: a backend records it, the job's membership carries it, and the
// launcher judges it.
//
// A cause is evidence if a rank reports its own failure, or the launcher that of its own child; it is an accusation if
// a rank reports another one. The text is for people; no code reads a fact out of it.
//
// Threads: causes are values, for any thread.
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
    left,      // the rank said goodbye before a collective that others wait for
    failed,    // an exception of the rank's own, or its device, made it fail
    aborted,   // the program called abort()
    timeout,   // a deadline passed
    mismatch,  // the ranks' calls or models differ
    stopped,   // no failure: the ranks have agreed to end their training (comm/stop.h); it ends no group
  };

  Kind kind = Kind::lost;
  int rank = -1;               // the rank that failed; -1: no single rank
  int reporter = -1;           // the rank that reports it; -1: the launcher, or the job's store
  std::string host = {};       // the host of `rank`; empty: not known
  int pid = 0;                 // the process of `rank`; 0: not known
  int restarts = 0;            // the number of the job's restarts
  std::int64_t step = -1;      // the Reducer's step, from 0; -1: not known
  int bucket = -1;             // -1: none
  std::int64_t sequence = -1;  // the collective's number, from 1; 0: before the first; -1: not known
  int error_number = 0;        // errno; 0: none
  int signal = 0;              // the signal that ended or stopped the process; 0: none, or not known
  bool ends_group = true;      // false: the group continues, but the launcher still gets the cause
  std::string text = {};       // a whole sentence, with the rank concerned and a remedy

  bool operator==(const Cause&) const = default;
  // Whether one rank reports the failure of another.
  bool is_accusation() const { return reporter != rank && rank >= 0 && reporter >= 0; }
  // The cause as rank `own` reads it: if another rank, or the store, reports `own` itself, the text says so first.
  Cause as_read_by(int own) const;
};

LOCKSTEP_API std::string_view name_of(Cause::Kind kind);

// Encodes a cause as a record (base/record.h), the text last. It cuts a text that makes the record longer than
// `most_bytes` (at least 768) between two characters, and appends " ...". Control characters of the text, except
// newlines, become '?'.
LOCKSTEP_API std::string encode(const Cause& cause, std::size_t most_bytes = std::size_t{1} << 16);
// Decodes a cause; nullopt if encode() did not make the bytes.
LOCKSTEP_API std::optional<Cause> decode_cause(std::string_view bytes);

// For a handler of `error`, a PeerLost, Timeout or Mismatch: throws an error of the same type with the message `text`,
// which adds the caller's knowledge. The new error keeps the cause, with that text, and with `step` and `bucket` if the
// cause has none. An error of another type is rethrown unchanged.
[[noreturn]] LOCKSTEP_API void throw_again(const Error& error, std::string_view text, std::int64_t step = -1,
                                           int bucket = -1);

// Makes an error of type E with the cause, and the cause's text as message: make_error<PeerLost>(cause).
template <typename E>
E make_error(const Cause& cause) {
  return E(cause.text, std::make_shared<const Cause>(cause));
}

// Throws an error with the cause and its text: Timeout, Mismatch or, for every other kind, PeerLost.
[[noreturn]] LOCKSTEP_API void throw_error(const Cause& cause);

}  // namespace lockstep
