// SPDX-License-Identifier: Apache-2.0
// The cause of a group's failure, as data: a backend records it, the job's membership carries it and the launcher
// judges it.
//
// A cause is evidence where a rank speaks of itself, or the launcher of its own child, and an accusation where it
// speaks of another rank. The text is for people; no code reads a fact out of it.
//
// Threads: values, any.
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
    stopped,   // no failure: the ranks have agreed to end their training (comm/stop.h). Ends no group
  };

  Kind kind = Kind::lost;
  int rank = -1;               // the rank that failed; -1: no single rank
  int reporter = -1;           // the rank that reports it; -1: the launcher, or the job's store
  std::string host = {};       // the host of `rank`; empty: not known
  int pid = 0;                 // the process of `rank`; 0: not known
  int generation = 0;          // the number of the job's restarts
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
  // The cause as rank `own` reads it: if others, or the store, report that rank itself, the text says so first.
  Cause as_read_by(int own) const;
};

LOCKSTEP_API std::string_view name_of(Cause::Kind kind);

// A record (base/record.h), the text last. A text that makes it longer than `most_bytes` is cut, between two
// characters, and ends in " ...". Control characters of the text but newlines become '?'. `most_bytes` is at least 768.
LOCKSTEP_API std::string encode(const Cause& cause, std::size_t most_bytes = std::size_t{1} << 16);
// nullopt if the bytes are not encode()'s.
LOCKSTEP_API std::optional<Cause> decode_cause(std::string_view bytes);

// For a handler of `error`, a PeerLost, Timeout or Mismatch: throws one like it with `text` for its message, which adds
// the caller's knowledge. Its cause is kept, with that text, and `step` and `bucket` where it has none. An error of
// another type is thrown on as it is.
[[noreturn]] LOCKSTEP_API void throw_again(const Error& error, std::string_view text, std::int64_t step = -1,
                                           int bucket = -1);

// An error of type E with the cause, and the cause's text as message: make_error<PeerLost>(cause).
template <typename E>
E make_error(const Cause& cause) {
  return E(cause.text, std::make_shared<const Cause>(cause));
}

// Throws Timeout, Mismatch or, for every other kind, PeerLost, with the cause's text and the cause.
[[noreturn]] LOCKSTEP_API void throw_error(const Cause& cause);

}  // namespace lockstep
