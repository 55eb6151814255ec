// SPDX-License-Identifier: Apache-2.0
// Work is a handle to a collective that has started. A note is a few integers that may travel with it.
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

// A note: a few integers of each rank that travel with an all-reduce, combined over all ranks.
//
// It carries values that all ranks must know with every step. It costs some bytes next to the data, and no collective
// of its own. Every rank learns the same values.

// How the ranks' values of one field are combined.
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
// The number of words that a frame of the wire has next to the weight (comm/wire/frame.cc). One more also needs two
// bits in NoteOps (comm/inline_scalars.h), and another layout of shared memory (comm/shm/control.h).
inline constexpr std::size_t kMostNoteFields = 7;

// A backend's part of one started collective. Threads: as Work.
class LOCKSTEP_API WorkState {
 public:
  virtual ~WorkState() = default;
  // Advances the group's pending collectives without blocking; true once this one is done on every rank. Throws the
  // group's first cause if the group failed.
  virtual bool poll() = 0;
  // Blocks until the collective is done. Timeout names the ranks that have not arrived.
  virtual void wait(const Deadline& deadline) = 0;
  // Makes `stream` wait for the collective instead of the host. On the CPU, where a stream's work is done when its call
  // returns, the host waits. A backend on a device overrides this and never waits for the device.
  virtual void wait_on(StreamView stream, const Deadline& deadline);
  // On a device: the timed event after the collective (DeviceRuntime::elapsed), once it is in the device's queue.
  virtual void* end_mark() const { return nullptr; }
  // A word of an all-reduce over all ranks, once it is done: word 0 is the sum of the weights, the note's fields
  // follow.
  virtual std::int64_t combined([[maybe_unused]] std::size_t word) const { return 0; }
};

// A handle to a collective, cheap to copy. The buffers belong to the collective until it is done: dropping the handle
// does not end the collective, so the compiler warns of a discarded Work. An empty Work is done.
//
// Threads: the thread that started the collective, as for the group.
// Failure: done() and wait() throw the group's first cause: PeerLost, Timeout or Mismatch. Every later call throws the
//   same.
class [[nodiscard]] Work {
 public:
  Work() = default;
  explicit Work(std::shared_ptr<WorkState> state, std::chrono::nanoseconds timeout = {})
      : state_(std::move(state)), timeout_(timeout) {}

  // True once the result is there and no rank reads this rank's buffers any more. Advances pending collectives.
  bool done() const {
    owner_.require("a look at a collective");
    return !state_ || state_->poll();
  }
  // Blocks until done() is true, at most the group's timeout.
  void wait() const {
    if (!done()) wait(Deadline::after(timeout_));  // a look is cheaper than reading the clock
  }
  void wait(const Deadline& deadline) const {
    owner_.require("a wait for a collective");
    if (state_) state_->wait(deadline);
  }
  // Makes later work in `stream` start after the collective. The host waits until the collective is in its device's
  // queue, never for the device's work; on the CPU, and for a result in host memory, this is wait().
  //
  // If the call throws that the group has failed, later work in `stream` still starts after the work that the device
  // does for the group, so memory that is freed in `stream` is no longer in use by a collective.
  void wait_on(StreamView stream) const {
    owner_.require("a wait for a collective");
    if (state_) state_->wait_on(stream, Deadline::after(timeout_));
  }
  // On a device, after wait_on(): the timed event after the collective, for DeviceRuntime::elapsed; it lives as long as
  // this Work. Null before, and on the CPU.
  void* end_mark() const { return state_ ? state_->end_mark() : nullptr; }
  // The sum of all ranks' weights in a weighted all-reduce, once it is done.
  std::int64_t total_weight() const { return state_ ? state_->combined(0) : 0; }
  // A field of an all-reduce's note, once it is done: all ranks' values, combined by the field's NoteOp.
  std::int64_t note(std::size_t field) const { return state_ ? state_->combined(1 + field) : 0; }

 private:
  std::shared_ptr<WorkState> state_;
  std::chrono::nanoseconds timeout_{};
  OwnerProcess owner_;
};

}  // namespace lockstep
