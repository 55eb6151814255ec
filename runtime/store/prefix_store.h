// SPDX-License-Identifier: Apache-2.0
// A PrefixStore puts a prefix before each key, and keeps the values in another store. Key "k" of a PrefixStore is key
// "prefix/k" of the store that keeps the values. The groups of a job use different prefixes, so no group overwrites
// another group's keys.
#pragma once

#include <memory>
#include <string>

#include "lockstep/store/store.h"
#include "runtime/base/internal_api.h"
#include "runtime/store/store_internals.h"

namespace lockstep::store {

class LOCKSTEP_INTERNAL_API PrefixStore : public Store, public StoreInternals {
 public:
  PrefixStore(std::string prefix, std::shared_ptr<Store> store)
      : prefix_(std::move(prefix)), store_(std::move(store)) {}

  void set(std::string_view key, std::string_view value) override;
  std::string get(std::string_view key, const Deadline& deadline) override;
  std::int64_t add(std::string_view key, std::int64_t delta) override;
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired) override;
  bool check(std::span<const std::string> keys) override;
  bool erase(std::string_view key) override;
  std::vector<std::string> multi_get(std::span<const std::string> keys, const Deadline& deadline) override;
  // Returns the number of all keys in the store that keeps the values, including keys without this object's prefix.
  std::int64_t num_keys() override { return store_->num_keys(); }
  // Returns the keys that begin with this object's prefix, and removes the prefix from each returned key.
  std::vector<std::string> list_keys() override;
  // Ends all waits at the store underneath.
  void stop_waiting() override { store_->stop_waiting(); }
  void give_up() override { store::give_up(*store_); }
  // Returns the description of the store underneath.
  std::string description() const override { return store_->description(); }

 private:
  std::string prefixed(std::string_view key) const;
  std::vector<std::string> prefixed(std::span<const std::string> keys) const;

  const std::string prefix_;
  const std::shared_ptr<Store> store_;
};

}  // namespace lockstep::store
