// SPDX-License-Identifier: Apache-2.0
// The job's store as a group sees it: once the group's watch knows of a failure, a call that would wait for somebody
// who will never come throws it instead (PeerLost), and so does one that finds the store's host gone. So a rank that
// dies before there is a group, also while the ranks still meet, fails the others' start at once.
//
// A value that is there is given all the same: a rank may have told why it ends, and ended. A failure ends waits that
// are under way (Store::stop_waiting); a store that only pauses ends none. Errors and threads otherwise as the store's.
#pragma once

#include <memory>

#include "lockstep/store/store.h"
#include "runtime/comm/init/group_watch.h"
#include "runtime/store/store_internals.h"

namespace lockstep {

class WatchedStore final : public store::Store, public store::StoreInternals {
 public:
  WatchedStore(std::shared_ptr<store::Store> store, std::shared_ptr<GroupWatch> watch)
      : store_(std::move(store)), watch_(std::move(watch)) {
    watch_->stop_with_failure(store_);
  }

  void set(std::string_view key, std::string_view value) override;
  std::string get(std::string_view key, const Deadline& deadline) override;
  std::int64_t add(std::string_view key, std::int64_t delta) override;
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired) override;
  // Throws PeerLost instead of returning false once a rank is lost: a caller that polls it waits too.
  bool check(std::span<const std::string> keys) override;
  bool erase(std::string_view key) override;
  std::vector<std::string> multi_get(std::span<const std::string> keys, const Deadline& deadline) override;
  std::int64_t num_keys() override;
  std::vector<std::string> list_keys() override;
  void stop_waiting() override { store_->stop_waiting(); }
  void give_up() override { store::give_up(*store_); }
  std::string description() const override { return store_->description(); }

 private:
  // PeerLost instead of the error if a failure has ended the wait.
  template <typename Wait>
  auto unless_failed(const Wait& wait);

  const std::shared_ptr<store::Store> store_;
  const std::shared_ptr<GroupWatch> watch_;
};

}  // namespace lockstep
