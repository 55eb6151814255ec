// A key-value store that all ranks of a job share: where they meet.
//
// The operations and their meaning are those of PyTorch's Store, less its traps (proto/PROTOCOL.md says which). Keys
// and values are bytes. A store knows nothing of ranks; what is built over it does (rendezvous/join.h).
//
// Threads: every method may be called from any thread at any time. A call of one thread never delays another's.
// Errors: StoreError when the store can't be reached or refuses, naming its address; Timeout where a Deadline is taken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/deadline.h"
#include "runtime/base/error.h"

namespace lockstep::store {

// The store can't be reached any more: its host has ended, vanished, or stopped answering.
class StoreLost : public StoreError {
 public:
  using StoreError::StoreError;
};

// Longest key and value. InvalidArgument for longer ones. A prefix (store/prefix_store.h) is part of the key.
inline constexpr std::size_t kMaxKeyBytes = 8191;
inline constexpr std::size_t kMaxValueBytes = std::size_t{8} << 20;

class Store {
 public:
  virtual ~Store() = default;

  // Stores `value`, replacing what was there, and wakes whoever waits for `key`.
  virtual void set(std::string_view key, std::string_view value) = 0;
  // Waits until `key` exists and returns its value. Timeout names the key.
  virtual std::string get(std::string_view key, const Deadline& deadline) = 0;
  // Waits until all of `keys` exist. Timeout names those that are missing.
  virtual void wait(std::span<const std::string> keys, const Deadline& deadline) = 0;
  // Adds `delta` to the decimal number at `key` (0 if absent) and returns the sum.
  // StoreError if the value there is not a number.
  virtual std::int64_t add(std::string_view key, std::int64_t delta) = 0;
  // Stores `desired` if the value is `expected`, or if the key is absent and `expected` is empty.
  // Returns the value now stored; if the key is absent and stays so, returns `expected`.
  virtual std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired) = 0;
  // True if all of `keys` exist now.
  virtual bool check(std::span<const std::string> keys) = 0;
  // Removes `key`; true if it was there.
  virtual bool erase(std::string_view key) = 0;
  // Appends to the value at `key` (empty if absent).
  virtual void append(std::string_view key, std::string_view value) = 0;
  // Waits for all of `keys`, returns their values in order.
  virtual std::vector<std::string> multi_get(std::span<const std::string> keys, const Deadline& deadline) = 0;
  // Sets each of `keys` to the value at the same place. InvalidArgument if the counts differ.
  virtual void multi_set(std::span<const std::string> keys, std::span<const std::string> values) = 0;
  // Number of keys stored. Queues don't count.
  virtual std::int64_t num_keys() = 0;
  // The keys stored, sorted. A list of what other ranks may change at once: for people who look for a fault.
  virtual std::vector<std::string> list_keys() = 0;

  // Queues have names of their own beside the keys, first in, first out. An empty queue and none are the same. wait()
  // and check() also take the name of a queue that isn't empty for a key that exists; get() doesn't.
  //
  // Puts `value` at the end of the queue, for one of those who wait for it.
  virtual void queue_push(std::string_view queue, std::string_view value) = 0;
  // Waits until the queue has an item, takes the first and returns it. Who waits longest is served first. A deadline
  // that has passed takes what is there. Timeout names the queue.
  virtual std::string queue_pop(std::string_view queue, const Deadline& deadline) = 0;
  // Items in the queue now.
  virtual std::int64_t queue_length(std::string_view queue) = 0;

  // Waits until ranks 0 to `world_size` - 1 are all in this call with this name; who comes last releases the others.
  // The name is free again then, and the same ranks may use it for the next time. Timeout lists the ranks that did not
  // come; who has timed out counts as not come. InvalidArgument if `rank` is in the barrier already, or if the world
  // size is another than that of those inside, or the rank is not in it.
  virtual void barrier(std::string_view name, std::int64_t rank, std::int64_t world_size, const Deadline& deadline) = 0;

  // From now on nobody waits: who does, and who comes later, finds what is there, and for what isn't a Timeout at once.
  // For good; for who knows that what is awaited will not come. Doesn't block.
  virtual void stop_waiting() = 0;
  // As stop_waiting(), for who knows that the store itself has stopped answering: nobody waits for its answers for long
  // either. For good. Doesn't block.
  virtual void give_up() { stop_waiting(); }

  // For messages: "tcp 127.0.0.1:41233".
  virtual std::string description() const = 0;
};

}  // namespace lockstep::store
