// SPDX-License-Identifier: Apache-2.0
// Work is a handle to a collective that has started. A note is a few integers that may travel with the collective.
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

// A note is a few integers of each rank that travel with an all-reduce, combined over all ranks.
//
// A note carries values that all ranks must know with every step. The note costs some bytes next to the data, and no
// separate collective. Every rank learns the same values.

// NoteOp says how the ranks' values of one field are combined.
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
// The maximum number of fields of a note: the number of words that a frame of the wire has next to the weight
// (comm/wire/frame.cc). One more field also needs two bits in NoteOps (comm/inline_scalars.h), and another layout of
// shared memory (comm/shm/control.h).
inline constexpr std::size_t kMostNoteFields = 7;

// WorkState is a backend's part of one started collective. The threads of Work use it.
class LOCKSTEP_API WorkState {
 public:
  virtual ~WorkState() = default;
  // Advances the group's pending collectives without blocking; returns true once this collective is done on every rank.
  // Throws the group's first cause if the group failed.
  virtual bool poll() = 0;
  // Blocks until the collective is done. Throws Timeout, which names the ranks that have not arrived.
  virtual void wait(const Deadline& deadline) = 0;
  // Makes `stream` wait for the collective instead of the host. On the CPU, where a stream's work is done when its call
  // returns, the host waits. A backend on a device overrides wait_on() and never waits for the device.
  virtual void wait_on(StreamView stream, const Deadline& deadline);
  // Returns, on a device, the timed event after the collective (DeviceRuntime::elapsed), once the event is in the
  // device's queue.
  virtual void* end_mark() const { return nullptr; }
  // Returns a word of an all-reduce over all ranks, once the all-reduce is done. Word 0 is the sum of the weights; the
  // note's fields follow.
  virtual std::int64_t combined([[maybe_unused]] std::size_t word) const { return 0; }
};

// Work is a handle to a collective, cheap to copy. The buffers belong to the collective until the collective is done.
// Dropping the handle does not end the collective, so the compiler warns of a discarded Work. An empty Work is done.
//
// Threads: the thread that started the collective uses its Work, as for the group.
// Failure: done() and wait() throw the group's first cause: PeerLost, Timeout or Mismatch. Every later call throws the
//   same cause.
class [[nodiscard]] Work {
 public:
  Work() = default;
  explicit Work(std::shared_ptr<WorkState> state, std::chrono::nanoseconds timeout = {})
      : state_(std::move(state)), timeout_(timeout) {}

  // Returns true once the result is complete and no rank reads this rank's buffers any more. Advances
  // pending collectives.
  bool done() const {
    owner_.require("a look at a collective");
    return !state_ || state_->poll();
  }
  // Blocks until done() is true, at most for the group's timeout.
  void wait() const {
    if (!done()) wait(Deadline::after(timeout_));  // a look is cheaper than reading the clock
  }
  void wait(const Deadline& deadline) const {
    owner_.require("a wait for a collective");
    if (state_) state_->wait(deadline);
  }
  // Makes later work in `stream` start after the collective. The host waits until the collective is in its device's
  // queue, never for the device's work. On the CPU, and for a result in host memory, wait_on() blocks like wait().
  //
  // If the call throws because the group has failed, later work in `stream` still starts after the work that the device
  // does for the group, so memory that is freed in `stream` is no longer in use by a collective.
  void wait_on(StreamView stream) const {
    owner_.require("a wait for a collective");
    if (state_) state_->wait_on(stream, Deadline::after(timeout_));
  }
  // Returns, on a device after wait_on(), the timed event after the collective, for DeviceRuntime::elapsed. The event
  // lives as long as this Work. Returns null before wait_on(), and on the CPU.
  void* end_mark() const { return state_ ? state_->end_mark() : nullptr; }
  // Returns the sum of all ranks' weights in a weighted all-reduce, once the all-reduce is done.
  std::int64_t total_weight() const { return state_ ? state_->combined(0) : 0; }
  // Returns a field of an all-reduce's note, once the all-reduce is done: all ranks' values, combined by the
  // field's NoteOp.
  std::int64_t note(std::size_t field) const { return state_ ? state_->combined(1 + field) : 0; }

 private:
  std::shared_ptr<WorkState> state_;
  std::chrono::nanoseconds timeout_{};
  OwnerProcess owner_;
};

}  // namespace lockstep
