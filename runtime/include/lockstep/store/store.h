// SPDX-License-Identifier: Apache-2.0
// Store is a key-value store that all ranks of a job share.
//
// Its operations are those of PyTorch's Store, without its traps (see proto/PROTOCOL.md) and without what lockstep does
// not need: queues, append, multi_set, barrier. Keys and values are bytes. A store does not know ranks; the code above
// it does (rendezvous/join.h).
//
// Threads: any thread may call every method at any time. A call of one thread never delays a call of another.
// Errors: StoreError, with the store's address, if the store can't be reached or refuses; Timeout from a call with a
//   Deadline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"

namespace lockstep::store {

// The store can't be reached any more: its host has ended, vanished, or stopped answering.
class LOCKSTEP_API StoreLost : public StoreError {
 public:
  using StoreError::StoreError;
};

// The longest key and value, in bytes. InvalidArgument for longer ones. A prefix (store/prefix_store.h) is part of the
// key.
inline constexpr std::size_t kMaxKeyBytes = 8191;
inline constexpr std::size_t kMaxValueBytes = std::size_t{8} << 20;

class LOCKSTEP_API Store {
 public:
  virtual ~Store() = default;

  // Stores `value`, replaces an earlier value, and wakes every call that waits for `key`.
  virtual void set(std::string_view key, std::string_view value) = 0;
  // Waits until `key` exists and returns its value. Timeout names the key.
  virtual std::string get(std::string_view key, const Deadline& deadline) = 0;
  // Adds `delta` to the decimal number at `key` (0 if absent) and returns the sum.
  // StoreError if the value there is not a number.
  virtual std::int64_t add(std::string_view key, std::int64_t delta) = 0;
  // Stores `desired` if the value is `expected`, or if the key is absent and `expected` is empty. Returns the value now
  // stored; if the key is absent and stays so, returns `expected`.
  virtual std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired) = 0;
  // True if all of `keys` exist now.
  virtual bool check(std::span<const std::string> keys) = 0;
  // Removes `key`; true if it existed.
  virtual bool erase(std::string_view key) = 0;
  // Waits until all of `keys` exist and returns their values in order. Timeout names the missing keys.
  virtual std::vector<std::string> multi_get(std::span<const std::string> keys, const Deadline& deadline) = 0;
  // Waits until all of `keys` exist. Timeout names the missing keys.
  void wait(std::span<const std::string> keys, const Deadline& deadline) { multi_get(keys, deadline); }
  // The number of keys stored.
  virtual std::int64_t num_keys() = 0;
  // The keys stored, sorted. Other ranks may change them at any time: the list is for people who look for a fault.
  virtual std::vector<std::string> list_keys() = 0;

  // Makes every call return what exists, or throw Timeout at once, instead of waiting for a key, also calls that have
  // begun. It can't be undone; call it when the awaited keys will not arrive. Doesn't block.
  virtual void stop_waiting() = 0;

  // The store's address, for messages: "tcp 127.0.0.1:41233".
  virtual std::string description() const = 0;
};

}  // namespace lockstep::store
