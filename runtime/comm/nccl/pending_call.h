// SPDX-License-Identifier: Apache-2.0
// A collective or a message of a group, from the program's call until the device has done it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/device/device_runtime.h"
#include "runtime/comm/nccl/communicator.h"
#include "runtime/comm/op_record.h"

namespace lockstep::nccl {

// The context that a call is launched in.
struct LaunchContext {
  Communicator* communicator = nullptr;  // null where memory is taken only
  DeviceRuntime& runtime;
  StreamView stream;
  int rank = 0;
  int size = 1;
  const std::int64_t* world_size = nullptr;  // on the device
};

struct Goodbye;

class PendingCall {
 public:
  // queued: not given to NCCL. launching: NCCL is about to put its kernels into the stream. launched: they are there.
  // done: they have ended, and the host memory of the result is written.
  enum class State : std::uint8_t { queued, launching, launched, done };

  virtual ~PendingCall() = default;
  virtual std::string describe() const = 0;

  // The program's thread: takes the memory that it needs beside the user's. To take some may wait for kernels, which on
  // the launch thread would hold up what those kernels wait for. Throws DeviceError.
  virtual void prepare(const LaunchContext& context) = 0;
  // The launch thread, in this order. Puts what comes before, and the NCCL calls in one group, into the stream...
  virtual void launch(const LaunchContext& context) = 0;
  // ...and, once NCCL has launched them, what comes behind.
  virtual void after_launch(const LaunchContext& context) = 0;
  // The device has done all of it: writes the user's memory if that is the host's. Once, any thread.
  virtual void finish() = 0;
  // Behind finish(): what is wrong with the result, alike on every rank.
  virtual std::optional<std::string> problem() const { return std::nullopt; }
  // The result is in host memory, which finish() writes.
  virtual bool is_for_host() const = 0;

  // The other rank of a message; -1 for a collective.
  virtual int awaited_peer() const { return -1; }
  // `rank`, which left with this goodbye, takes no part in this one.
  virtual bool is_after(int rank, const Goodbye& goodbye) const = 0;
  // Of a collective.
  virtual const comm::OpRecord* record() const { return nullptr; }
  // A word of all ranks, of a collective that is done.
  virtual std::int64_t combined(std::size_t) const { return 0; }

  bool has_reached(State wanted) const { return state.load(std::memory_order_acquire) >= wanted; }

  std::uint64_t sequence = 0;      // of a collective, from 1
  std::shared_ptr<void> ready;     // event: what the call reads is computed; null for host memory
  std::shared_ptr<void> finished;  // timed event, behind all of it; set when launched
  std::atomic<State> state{State::queued};
  std::atomic<bool> handed_on{false};  // a stream waits for it, and so for all before it
};

// Host or device memory as the stream sees it. Host memory goes through pinned memory of the same size.
class StagedBuffer {
 public:
  // Makes room for host memory. `result`: the buffer's memory where the call writes it, else null.
  void prepare(const LaunchContext& context, const ConstBufferView& buffer, void* result = nullptr);
  // The stream copies host memory to the device.
  void copy_in(const LaunchContext& context);
  // Behind the collective: the stream copies it back.
  void copy_out(const LaunchContext& context);
  // The device has done it: writes the user's memory, and gives back what was taken for it.
  void finish();

  const void* data() const { return on_device_ ? on_device_.get() : buffer_.data; }
  void* result() const { return on_device_ ? on_device_.get() : result_; }

 private:
  ConstBufferView buffer_;
  void* result_ = nullptr;
  std::shared_ptr<void> on_device_;
  std::shared_ptr<void> pinned_;
  bool comes_back_ = false;
};

}  // namespace lockstep::nccl
