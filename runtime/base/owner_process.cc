// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/owner_process.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <new>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// The pids of this process and, in a forked one, of its parent.
std::atomic<int> own_pid{0};
std::atomic<int> parent_pid{0};

// Before main(), so that no object is older.
[[maybe_unused]] const bool kIsCounting = [] {
  own_pid.store(::getpid());
  if (const int error = ::pthread_atfork(nullptr, nullptr, &OwnerProcess::count_fork); error != 0) {
    throw SystemError("pthread_atfork", error);
  }
  return true;
}();

}  // namespace

std::atomic<std::uint32_t> OwnerProcess::forks_so_far_{0};

void OwnerProcess::count_fork() noexcept {
  parent_pid.store(own_pid.load());
  own_pid.store(::getpid());
  forks_so_far_.fetch_add(1, std::memory_order_relaxed);
}

void OwnerProcess::keep(const void* object) noexcept {
  struct Kept {
    const void* object;
    Kept* next;
  };
  static std::atomic<Kept*> last{nullptr};
  auto* const kept = new (std::nothrow) Kept{object, last.load()};
  while (kept != nullptr && !last.compare_exchange_weak(kept->next, kept)) {
  }
}

void OwnerProcess::refuse(std::string_view operation) const {
  const bool is_parents = forks_ + 1 == forks_so_far_.load(std::memory_order_relaxed);
  throw InvalidArgument(fmt::format(
      "{}: this object belongs to {}, and process {} was forked from it; a child of fork() can't use the groups and "
      "stores of its parent: fork before init_process_group, let the child exec, or use a thread",
      operation, is_parents ? fmt::format("process {}", parent_pid.load()) : std::string("an earlier process"),
      own_pid.load()));
}

}  // namespace lockstep
