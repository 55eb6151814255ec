// SPDX-License-Identifier: Apache-2.0
// OwnerProcess knows the process that made an object, which fork() may have copied into another process.
//
// A group, a store's server or a temporary file belongs to the process that made it. In a forked child, the destructors
// of its copies must not talk to other processes, remove files or wait. Libraries fork without the program's knowledge,
// and a child that calls exit() destroys static objects. Children that exec at once, as system(), popen() and
// posix_spawn() make them, are not affected.
//
// Threads: any thread may use an OwnerProcess.
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
  // Returns whether this process made the object: false in a child that fork() has made since then, and in the child's
  // children. The call costs a load; getpid() would cost a system call.
  bool is_here() const noexcept { return forks_ == forks_so_far_.load(std::memory_order_relaxed); }
  // Throws InvalidArgument, which names both processes, unless is_here().
  void require(std::string_view operation) const {
    if (!is_here()) refuse(operation);
  }
  // Counts a fork; this function is the handler for pthread_atfork.
  static void count_fork() noexcept;

 private:
  [[noreturn]] void refuse(std::string_view operation) const;

  static std::atomic<std::uint32_t>
      // The number of forks between the process that exec started and this process.
      forks_so_far_;
  std::uint32_t forks_;
};

// Deletes an object only in the process that made the object. A forked child must not touch the object: the object's
// threads don't exist in the child, its locks may be held for ever, and its memory ends with the child.
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

// Returns a pointer to the same object. Only the process that made the pointer releases the object; a forked child's
// copies of the pointer never do.
template <typename T>
std::shared_ptr<T> released_by_owner(std::shared_ptr<T> object) {
  T* const face = object.get();
  return {face, [owner = OwnerProcess(), kept = std::move(object)](T*) mutable {
            if (!owner.is_here()) static_cast<void>(new std::shared_ptr<T>(kept));
            kept.reset();
          }};
}

}  // namespace lockstep
