// SPDX-License-Identifier: Apache-2.0
// Defines Work, the handle to a collective that has started, and NoteField, one of the integers that ranks may send
// along with an all-reduce.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "lockstep/base/api.h"
#include "lockstep/base/deadline.h"
#include "lockstep/base/owner_process.h"
#include "lockstep/device/stream.h"

namespace lockstep {

// A note is a few integers that each rank sends along with an all-reduce; the ranks' integers are combined over
// all ranks.
//
// A note carries values that all ranks must learn in every step. A note adds a few bytes to the all-reduce, and needs
// no separate collective. Every rank receives equal combined values.

// NoteOp says how the values that the ranks give to one field of a note are combined.
enum class NoteOp : std::uint8_t {
  sum = 1,  // the sum of all ranks' values, modulo 2^64
  any,      // 1 if some rank's value is not 0, else 0
  equal,    // 1 if all ranks' values are equal, else 0
};
LOCKSTEP_API std::string_view name_of(NoteOp op);

struct NoteField {
  NoteOp op = NoteOp::sum;  // the same on all ranks
  std::int64_t value = 0;   // this rank's value
};
// The maximum number of fields of a note: a network frame has this many words for fields, in addition to the word for
// the weight (comm/wire/frame.cc). A larger maximum would also require two more bits per field in NoteOps
// (comm/inline_scalars.h), and a new layout of the shared memory (comm/shm/control.h).
inline constexpr std::size_t kMostNoteFields = 7;

// WorkState is the state that a backend keeps for one collective that has started. A Work calls the functions of its
// WorkState on the thread that uses the Work.
class LOCKSTEP_API WorkState {
 public:
  virtual ~WorkState() = default;
  // Advances the group's pending collectives without blocking; returns true once this collective is done on every rank.
  // Throws the first cause of the group's failure if the group has failed.
  virtual bool poll() = 0;
  // Blocks until the collective is done. Throws Timeout after the deadline; the message names the ranks that have
  // not arrived.
  virtual void wait(const Deadline& deadline) = 0;
  // Makes later work in `stream` wait for the collective, while the host continues. On the CPU the host waits, because
  // the CPU has no streams that could wait. A backend on a device overrides wait_on() by a function in which the host
  // never waits for the device.
  virtual void wait_on(StreamView stream, const Deadline& deadline);
  // Returns the timed event that the device records after the collective, for DeviceRuntime::elapsed, or null while the
  // event is not yet in the device's queue.
  virtual void* end_mark() const { return nullptr; }
  // Once an all-reduce is done, returns the integer with index `word` among the integers that the all-reduce has
  // combined over the ranks. Word 0 is the sum of all ranks' weights, and word 1 + i is field i of the note.
  virtual std::int64_t combined([[maybe_unused]] std::size_t word) const { return 0; }
};

// Work is a handle to a collective, cheap to copy. The program may not use the collective's buffers until the
// collective is done. Destroying a Work does not end the collective, so the compiler warns about a discarded Work. An
// empty Work is done.
//
// Threads: a Work counts as a part of its group, so only one thread at a time may use the group and the group's Works.
// Failure: done() and wait() throw the first cause of the group's failure (PeerLost, Timeout or Mismatch). Every later
//   call also throws the first cause of the group's failure.
class [[nodiscard]] Work {
 public:
  Work() = default;
  explicit Work(std::shared_ptr<WorkState> state, std::chrono::nanoseconds timeout = {})
      : state_(std::move(state)), timeout_(timeout) {}

  // Returns true once the collective's result is complete and no rank reads this rank's buffers any more. Advances
  // pending collectives.
  bool done() const {
    owner_.require("a look at a collective");
    return !state_ || state_->poll();
  }
  // Blocks until done() returns true, but no longer than the group's timeout.
  void wait() const {
    if (!done()) wait(Deadline::after(timeout_));  // a look is cheaper than reading the clock
  }
  void wait(const Deadline& deadline) const {
    owner_.require("a wait for a collective");
    if (state_) state_->wait(deadline);
  }
  // Makes later work in `stream` start after the collective. The host waits only until the collective is in the
  // device's queue, and never until the device has run the collective. On the CPU, and for a result in host memory,
  // wait_on() blocks like wait().
  //
  // If wait_on() throws because the group has failed, later work in `stream` still starts after the device's work for
  // the group. After wait_on() has thrown, no collective still uses memory that later work in `stream` frees.
  void wait_on(StreamView stream) const {
    owner_.require("a wait for a collective");
    if (state_) state_->wait_on(stream, Deadline::after(timeout_));
  }
  // Returns the timed event that the device records after the collective, for DeviceRuntime::elapsed. The event lives
  // as long as this Work. Returns null if wait_on() has not been called, and for every collective on the CPU.
  void* end_mark() const { return state_ ? state_->end_mark() : nullptr; }
  // Returns the sum of the weights of all ranks, once the weighted all-reduce is done.
  std::int64_t total_weight() const { return state_ ? state_->combined(0) : 0; }
  // Returns the values that all ranks gave to field `field` of the note, combined by the field's NoteOp, once the
  // all-reduce is done.
  std::int64_t note(std::size_t field) const { return state_ ? state_->combined(1 + field) : 0; }

 private:
  std::shared_ptr<WorkState> state_;
  std::chrono::nanoseconds timeout_{};
  OwnerProcess owner_;
};

}  // namespace lockstep
