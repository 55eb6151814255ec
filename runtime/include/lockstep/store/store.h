// SPDX-License-Identifier: Apache-2.0
// Store is a key-value store that all ranks of a job share.
//
// Store has the operations of PyTorch's Store, except queues, append, multi_set and barrier, which lockstep does not
// need. Store avoids the traps of PyTorch's Store that are described in proto/PROTOCOL.md. Keys and values are bytes. A
// Store knows nothing about ranks; the code that uses a Store chooses the keys of each rank (rendezvous/join.h).
//
// Threads: any thread may call any function of a Store at any time. A call on one thread never delays a call
//   on another thread.
// Errors: a Store's functions throw StoreError, which names the store's address, if the store can't be reached or
//   refuses a request. A call that has a Deadline throws Timeout when the deadline is reached.
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

// StoreLost is thrown if the store can't be reached any more, because its host has ended, vanished, or
// stopped answering.
class LOCKSTEP_API StoreLost : public StoreError {
 public:
  using StoreError::StoreError;
};

// The maximum sizes of a key and of a value, in bytes. The functions of Store throw InvalidArgument for a key or a
// value above its maximum size. A prefix (store/prefix_store.h) counts as part of the key.
inline constexpr std::size_t kMaxKeyBytes = 8191;
inline constexpr std::size_t kMaxValueBytes = std::size_t{8} << 20;

class LOCKSTEP_API Store {
 public:
  virtual ~Store() = default;

  // Stores `value` under `key`, in place of any earlier value, and wakes every call that waits for `key`.
  virtual void set(std::string_view key, std::string_view value) = 0;
  // Waits until `key` exists and returns its value. Throws Timeout, which names the key.
  virtual std::string get(std::string_view key, const Deadline& deadline) = 0;
  // Adds `delta` to the decimal number at `key` (0 if `key` is absent) and returns the sum. Throws StoreError if the
  // value at `key` is not a number.
  virtual std::int64_t add(std::string_view key, std::int64_t delta) = 0;
  // Stores `desired` if the value at `key` is `expected`, or if `key` is absent and `expected` is empty. Returns the
  // value that is stored at `key` after the call, or `expected` if `key` is still absent.
  virtual std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired) = 0;
  // Returns whether all of `keys` exist now.
  virtual bool check(std::span<const std::string> keys) = 0;
  // Removes `key` from the store, and returns whether the key existed.
  virtual bool erase(std::string_view key) = 0;
  // Waits until all of `keys` exist and returns their values in the order of `keys`. Throws Timeout, which names the
  // missing keys.
  virtual std::vector<std::string> multi_get(std::span<const std::string> keys, const Deadline& deadline) = 0;
  // Waits until all of `keys` exist. Throws Timeout, which names the missing keys.
  void wait(std::span<const std::string> keys, const Deadline& deadline) { multi_get(keys, deadline); }
  // Returns the number of stored keys.
  virtual std::int64_t num_keys() = 0;
  // Returns the stored keys, sorted. The list of keys is meant for debugging, because other ranks may add and erase
  // keys at any time.
  virtual std::vector<std::string> list_keys() = 0;

  // Ends all waits for keys; a program calls stop_waiting() when the awaited keys will never arrive. After
  // stop_waiting() every call that needs keys, including a call that is already waiting, returns at once if the keys
  // exist, and otherwise throws Timeout at once. A call of stop_waiting() doesn't block, and can't be undone.
  virtual void stop_waiting() = 0;

  // Returns the store's address, for messages: "tcp 127.0.0.1:41233".
  virtual std::string description() const = 0;
};

}  // namespace lockstep::store
