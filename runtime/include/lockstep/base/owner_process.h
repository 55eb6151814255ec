// SPDX-License-Identifier: Apache-2.0
// The process that made an object, where fork() may have copied it into another one.
//
// A child's copies of a group, of a store's server or of a temporary file are the parent's: at their end they must not
// talk to other processes, remove files or wait for anything in the child. Libraries fork without the program's
// knowledge, and a child that calls exit() destroys what is static. Children that exec at once, as those of system(),
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
  // InvalidArgument, naming both processes, if it is not.
  void require(std::string_view operation) const {
    if (!is_here()) refuse(operation);
  }
  // For pthread_atfork.
  static void count_fork() noexcept;

 private:
  [[noreturn]] void refuse(std::string_view operation) const;

  static std::atomic<std::uint32_t> forks_so_far_;  // between this process and the one that was started by exec
  std::uint32_t forks_;
};

// Deletes in the process that made the object. Elsewhere nothing of it is touched: its threads are not there, its locks
// may be held by them for ever, and its memory ends with the process.
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

// The same object, which the child's copies of the pointer never let go of.
template <typename T>
std::shared_ptr<T> released_by_owner(std::shared_ptr<T> object) {
  T* const face = object.get();
  return {face, [owner = OwnerProcess(), kept = std::move(object)](T*) mutable {
            if (!owner.is_here()) static_cast<void>(new std::shared_ptr<T>(kept));
            kept.reset();
          }};
}

}  // namespace lockstep
