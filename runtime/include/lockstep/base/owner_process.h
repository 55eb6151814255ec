// SPDX-License-Identifier: Apache-2.0
// OwnerProcess knows the process that made an object, which fork() may have copied into another process.
//
// A child's copies of a group, a store's server or a temporary file belong to the parent: their destructors must not
// talk to other processes, remove files or wait for anything in the child. Libraries fork without the program's
// knowledge, and a child that calls exit() destroys static objects. Children that exec at once, as those of system(),
// popen() and posix_spawn(), are not affected.
//
// Threads: any.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "lockstep/base/api.h"

namespace lockstep {

class LOCKSTEP_API OwnerProcess {
 public:
  OwnerProcess() noexcept : forks_(forks_so_far_.load(std::memory_order_relaxed)) {}
  // False in a child that fork() has made since, and in its children. Costs a load: getpid() would be a system call.
  bool is_here() const noexcept { return forks_ == forks_so_far_.load(std::memory_order_relaxed); }
  // Throws InvalidArgument, which names both processes, unless is_here().
  void require(std::string_view operation) const {
    if (!is_here()) refuse(operation);
  }
  // The handler for pthread_atfork.
  static void count_fork() noexcept;

 private:
  [[noreturn]] void refuse(std::string_view operation) const;

  static std::atomic<std::uint32_t> forks_so_far_;  // the forks between the process that exec started and this one
  std::uint32_t forks_;
};

// Deletes in the process that made the object. Another process must not touch the object: its threads don't exist
// there, its locks may be held for ever, and its memory ends with the process.
struct DeleteInOwner {
  OwnerProcess owner = {};

  template <typename T>
  void operator()(T* object) const {
    if (owner.is_here()) delete object;
  }
};
template <typename T>
using OwnedHere = std::unique_ptr<T, DeleteInOwner>;

template <typename T, typename... Arguments>
OwnedHere<T> make_owned_here(Arguments&&... arguments) {
  return OwnedHere<T>(new T(std::forward<Arguments>(arguments)...));
}

// The same object; a child's copies of the pointer never release it.
template <typename T>
std::shared_ptr<T> released_by_owner(std::shared_ptr<T> object) {
  T* const face = object.get();
  return {face, [owner = OwnerProcess(), kept = std::move(object)](T*) mutable {
            if (!owner.is_here()) static_cast<void>(new std::shared_ptr<T>(kept));
            kept.reset();
          }};
}

}  // namespace lockstep
