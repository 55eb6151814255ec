// SPDX-License-Identifier: Apache-2.0
// An OwnerProcess records which process made an object, because fork() may copy the object into another process.
//
// A group, a store's server or a temporary file belongs to the process that made it. In a forked child, the destructor
// of a copied group, server or file must not talk to other processes, remove files or wait. A child runs destructors
// even if the program itself never forks: libraries fork without the program's knowledge, and a child that calls exit()
// destroys static objects. Children that call exec at once, like the children of system(), popen() and posix_spawn(),
// run no destructors.
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
  // Returns whether this process made the object. Returns false in a child that was forked after the object was made,
  // and in the children of the child. A call of is_here() costs one load of an atomic, whereas getpid() would cost a
  // system call.
  bool is_here() const noexcept { return forks_ == forks_so_far_.load(std::memory_order_relaxed); }
  // Throws InvalidArgument if is_here() returns false; the message names the object's process and this process.
  void require(std::string_view operation) const {
    if (!is_here()) refuse(operation);
  }
  // Counts a fork; pthread_atfork() registers count_fork() to run in each forked child.
  static void count_fork() noexcept;
  // Keeps a pointer to `object`, which this process will never delete, so that a leak checker takes it for used.
  static void keep(const void* object) noexcept;

 private:
  [[noreturn]] void refuse(std::string_view operation) const;

  static std::atomic<std::uint32_t>
      // The number of forks since the last exec: 0 in a process that exec started, and one more in each forked child.
      forks_so_far_;
  std::uint32_t forks_;
};

// Deletes an object only in the process that made the object. A forked child must not touch the object: the object's
// threads don't exist in the child, the object's locks may be held for ever, and the child's end frees the memory.
struct DeleteInOwner {
  OwnerProcess owner = {};

  template <typename T>
  void operator()(T* object) const {
    owner.is_here() ? delete object : OwnerProcess::keep(object);
  }
};
template <typename T>
using OwnedHere = std::unique_ptr<T, DeleteInOwner>;

template <typename T, typename... Arguments>
OwnedHere<T> make_owned_here(Arguments&&... arguments) {
  return OwnedHere<T>(new T(std::forward<Arguments>(arguments)...));
}

// Returns a second pointer to `object`. Only the process that called released_by_owner() releases the object; copies of
// the pointer in a forked child never release the object.
template <typename T>
std::shared_ptr<T> released_by_owner(std::shared_ptr<T> object) {
  T* const face = object.get();
  return {face, [owner = OwnerProcess(), kept = std::move(object)](T*) mutable {
            if (!owner.is_here()) OwnerProcess::keep(new std::shared_ptr<T>(kept));
            kept.reset();
          }};
}

}  // namespace lockstep
