// SPDX-License-Identifier: Apache-2.0
// A key-value store that all ranks of a job share.
//
// The operations and their meaning are those of PyTorch's Store, less its traps (proto/PROTOCOL.md says which) and less
// what nothing here needs: queues, append, multi_set, barrier. Keys and values are bytes. A store knows nothing of
// ranks; what is built over it does (rendezvous/join.h).
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

#include "lockstep/base/api.h"
#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"

namespace lockstep::store {

// The store can't be reached any more: its host has ended, vanished, or stopped answering.
class LOCKSTEP_API StoreLost : public StoreError {
 public:
  using StoreError::StoreError;
};

// Longest key and value. InvalidArgument for longer ones. A prefix (store/prefix_store.h) is part of the key.
inline constexpr std::size_t kMaxKeyBytes = 8191;
inline constexpr std::size_t kMaxValueBytes = std::size_t{8} << 20;

class LOCKSTEP_API Store {
 public:
  virtual ~Store() = default;

  // Stores `value`, replacing what was there, and wakes every call that waits for `key`.
  virtual void set(std::string_view key, std::string_view value) = 0;
  // Waits until `key` exists and returns its value. Timeout names the key.
  virtual std::string get(std::string_view key, const Deadline& deadline) = 0;
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
  // Waits until all of `keys` exist and returns their values in order. Timeout names those that are missing.
  virtual std::vector<std::string> multi_get(std::span<const std::string> keys, const Deadline& deadline) = 0;
  // As multi_get(), without the values.
  void wait(std::span<const std::string> keys, const Deadline& deadline) { multi_get(keys, deadline); }
  // Number of keys stored.
  virtual std::int64_t num_keys() = 0;
  // The keys stored, sorted. A list of what other ranks may change at once: for people who look for a fault.
  virtual std::vector<std::string> list_keys() = 0;

  // From now on no call waits for a key, whether it has begun or not: it returns what is there, or throws Timeout at
  // once. Can't be undone; call it when the awaited keys are known not to come. Doesn't block.
  virtual void stop_waiting() = 0;

  // For messages: "tcp 127.0.0.1:41233".
  virtual std::string description() const = 0;
};

}  // namespace lockstep::store
