// SPDX-License-Identifier: Apache-2.0
// While a group is made within another one: a failure of that one ends the waits for ranks which were told of it and
// will not come.
//
// Threads: it looks on the thread that makes the group, which is its parent's one thread, and on no other.
#pragma once

#include <memory>
#include <string>
#include <thread>

#include "lockstep/comm/process_group.h"
#include "runtime/store/prefix_store.h"

namespace lockstep::comm {

class ParentWatch {
 public:
  explicit ParentWatch(ProcessGroup& parent) : parent_(&parent), thread_(std::this_thread::get_id()) {}

  // True for the thread that makes the group, while it does.
  bool looks() const { return std::this_thread::get_id() == thread_ && parent_ != nullptr; }
  // Throws the parent's first cause if it has failed.
  void check() const {
    if (looks()) parent_->progress();
  }
  // The group is made, or will not be: from now on it owes its parent nothing, and may outlive it.
  void end() { parent_ = nullptr; }

 private:
  ProcessGroup* parent_;
  const std::thread::id thread_;
};

// The part of the parent's store that is the new group's.
class SubgroupStore final : public store::PrefixStore {
 public:
  SubgroupStore(std::string prefix, std::shared_ptr<store::Store> store, std::shared_ptr<const ParentWatch> watch)
      : PrefixStore(std::move(prefix), std::move(store)), watch_(std::move(watch)) {}

  std::string get(std::string_view key, const Deadline& deadline) override;
  bool check(std::span<const std::string> keys) override;
  std::vector<std::string> multi_get(std::span<const std::string> keys, const Deadline& deadline) override;

 private:
  const std::shared_ptr<const ParentWatch> watch_;
};

}  // namespace lockstep::comm
