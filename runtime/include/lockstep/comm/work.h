// SPDX-License-Identifier: Apache-2.0
// A collective in progress, and the note that may ride with it.
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

// A note: a few integers of each rank that ride with an all-reduce, and their reduction over all ranks.
//
// It carries values that all ranks must know with every step, at the price of some bytes beside the data and without a
// collective of its own. Every rank learns the same.

// The reduction of the ranks' values of one field.
enum class NoteOp : std::uint8_t {
  sum = 1,  // the sum of all ranks' values, modulo 2^64
  any,      // 1 if some rank's value is not 0, else 0
  equal,    // 1 if all ranks' values are equal, else 0
};
LOCKSTEP_API std::string_view name_of(NoteOp op);

struct NoteField {
  NoteOp op = NoteOp::sum;  // the same on all ranks
  std::int64_t value = 0;   // this rank's
};
// As many as a frame of the wire has words for beside the weight (comm/wire/frame.cc). One more also needs two bits in
// NoteOps (comm/inline_scalars.h), and another layout of shared memory (comm/shm/control.h).
inline constexpr std::size_t kMostNoteFields = 7;

// A backend's part of one started collective. Same threads rule as Work.
class LOCKSTEP_API WorkState {
 public:
  virtual ~WorkState() = default;
  // Pushes the group's pending collectives without blocking; true once this one is done on every rank.
  // Throws the group's first cause if it failed.
  virtual bool poll() = 0;
  // Blocks until done. Timeout names the ranks that have not arrived.
  virtual void wait(const Deadline& deadline) = 0;
  // Makes `stream` wait instead of the host. On the CPU, where a stream's work is done when its call returns, the host
  // is the stream: it waits by itself. A backend on a device overrides it and never waits for the device.
  virtual void wait_on(StreamView stream, const Deadline& deadline);
  // On a device: the timed event behind the collective (DeviceRuntime::elapsed), once it is in the device's queue.
  virtual void* end_mark() const { return nullptr; }
  // A word of an all-reduce, once done, over all ranks: word 0 is the sum of the weights, then come the note's fields.
  virtual std::int64_t combined([[maybe_unused]] std::size_t word) const { return 0; }
};

// A handle to a collective, cheap to copy. The buffers belong to the collective until it is done: dropping the handle
// does not end it, so the compiler warns of a discarded Work. An empty Work is done.
//
// Threads: the thread that started the collective, like the group itself.
// Failure: done() and wait() throw the group's first cause, sticky: PeerLost, Timeout or Mismatch.
class [[nodiscard]] Work {
 public:
  Work() = default;
  explicit Work(std::shared_ptr<WorkState> state, std::chrono::nanoseconds timeout = {})
      : state_(std::move(state)), timeout_(timeout) {}

  // True once the result is here and no rank reads this rank's buffers any more. Gives pending work a push.
  bool done() const {
    owner_.require("a look at a collective");
    return !state_ || state_->poll();
  }
  // Blocks until then, at most the group's timeout.
  void wait() const {
    if (!done()) wait(Deadline::after(timeout_));  // a look is cheaper than reading the clock
  }
  void wait(const Deadline& deadline) const {
    owner_.require("a wait for a collective");
    if (state_) state_->wait(deadline);
  }
  // Work put into `stream` from now on starts after the collective. The host waits until the collective is in the queue
  // of its device, never for the device's work; but on the CPU, and for a result in host memory, this is wait(). Where
  // it throws that the group has failed, that work starts after what the device still does for the group, all the same:
  // memory that is freed in `stream` is in no collective's use.
  void wait_on(StreamView stream) const {
    owner_.require("a wait for a collective");
    if (state_) state_->wait_on(stream, Deadline::after(timeout_));
  }
  // On a device, after wait_on(): the timed event behind the collective, for DeviceRuntime::elapsed; it lives as long
  // as this Work. Null before, and on the CPU.
  void* end_mark() const { return state_ ? state_->end_mark() : nullptr; }
  // The sum of all ranks' weights in a weighted all-reduce, once done.
  std::int64_t total_weight() const { return state_ ? state_->combined(0) : 0; }
  // A field of an all-reduce's note, once done: all ranks' values, combined as its NoteOp says.
  std::int64_t note(std::size_t field) const { return state_ ? state_->combined(1 + field) : 0; }

 private:
  std::shared_ptr<WorkState> state_;
  std::chrono::nanoseconds timeout_{};
  OwnerProcess owner_;
};

}  // namespace lockstep
