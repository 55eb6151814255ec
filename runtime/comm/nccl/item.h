// What the owner thread puts into a stream: a collective or a message, from the call to its end.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "runtime/comm/nccl/communicator.h"
#include "runtime/comm/op_record.h"
#include "runtime/device/device_runtime.h"

namespace lockstep::nccl {

// What an item is launched with.
struct Lane {
  Communicator* communicator = nullptr;  // null where memory is taken only
  DeviceRuntime& runtime;
  StreamView stream;
  int rank = 0;
  int size = 1;
  const std::int64_t* world_size = nullptr;  // on the device
};

// Messages that one rank has started with another.
struct MessageCounts {
  std::int64_t sent = 0;
  std::int64_t received = 0;
};

// What a rank says of itself when it leaves.
struct Goodbye {
  std::uint64_t last = 0;  // collective
  MessageCounts messages;  // with this rank
};

// Its life: called, prepared, launched (its kernels are in the stream), done (they have ended, and its host memory is
// written).
class Item {
 public:
  virtual ~Item() = default;
  virtual std::string describe() const = 0;

  // The program's thread: takes the memory that it needs beside the user's. To take some may wait for kernels, which on
  // the owner thread would hold up what those kernels wait for. Throws DeviceError.
  virtual void prepare(const Lane& lane) = 0;
  // Owner thread, in this order. Puts what comes before, and the NCCL calls in one group, into the stream...
  virtual void launch(const Lane& lane) = 0;
  // ...and, once NCCL has launched them, what comes behind.
  virtual void follow_up(const Lane& lane) = 0;
  // The device has done all of it: writes the user's memory if that is the host's. Once, any thread.
  virtual void land() = 0;
  // Behind land(): what is wrong with the result, alike on every rank.
  virtual std::optional<std::string> problem() const { return std::nullopt; }
  // The result is in host memory, which land() writes.
  virtual bool is_for_host() const = 0;

  // Of a message: the other side.
  virtual int awaited_peer() const { return -1; }
  // `rank`, which has left, takes no part in this one.
  virtual bool is_beyond(int rank, const Goodbye& goodbye) const = 0;
  // Of a collective.
  virtual const comm::OpRecord* record() const { return nullptr; }
  // Of a collective that is done: a word of all ranks.
  virtual std::int64_t combined(std::size_t) const { return 0; }

  std::uint64_t sequence = 0;      // of a collective, from 1
  std::shared_ptr<void> ready;     // event: what the collective reads is computed; null for host memory
  std::shared_ptr<void> finished;  // timed event, behind all of it; set when launched
  std::atomic<bool> launched{false};
  std::atomic<bool> done{false};
  std::atomic<bool> handed_on{false};  // a stream waits for it, and so for all before it
};

// Host or device memory as the stream sees it. Host memory goes through pinned memory of the same size.
class Staged {
 public:
  // Makes room for host memory.
  void prepare(const Lane& lane, const BufferView& buffer);
  // The stream copies host memory to the device.
  void bring_in(const Lane& lane);
  // Behind the collective: the stream copies it back.
  void bring_back(const Lane& lane);
  // The device has done it: to the user's memory. What was taken for it is given back.
  void land();

  std::byte* data() const { return data_; }

 private:
  BufferView buffer_;
  std::byte* data_ = nullptr;
  std::shared_ptr<void> on_device_;
  std::shared_ptr<void> pinned_;
  bool comes_back_ = false;
};

}  // namespace lockstep::nccl
