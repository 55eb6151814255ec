// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/progress.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "runtime/base/resource_limit.h"
#include "runtime/comm/futex.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t kPage = 4096;

// Between what this thread wrote and what it reads next, for any kind of read.
void full_fence() {
#if !defined(__SANITIZE_THREAD__)  // which knows no fences; the operation before it is one on the machines it runs on
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

// Empty where the process can have no such file, for the reason in `error`: its bell is its own then.
UniqueFd make_file(int& error) {
  error = EFBIG;
  if (!may_file_have(kPage)) return {};
  UniqueFd file(::memfd_create("lockstep-bell", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const bool made = file && ::fallocate(file.get(), 0, 0, kPage) == 0 &&
                    ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0;
  error = errno;
  return made ? std::move(file) : UniqueFd();
}

std::shared_ptr<ProcessDoorbell> map(int file) {
  const int flags = file < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED | MAP_POPULATE;
  void* const page = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, flags, file, 0);
  if (page == MAP_FAILED) throw SystemError("mapping the bell of a process", errno);
  return {static_cast<ProcessDoorbell*>(page), [](ProcessDoorbell* words) { ::munmap(words, kPage); }};
}

struct stat status_of(int file) {
  struct stat status {};
  if (::fstat(file, &status) != 0)
    throw SystemError(
        "shared memory: can't fstat the page by which the other ranks of this host wake a process (use backend 'tcp' "
        "if this error happens again)",
        errno);
  return status;
}

}  // namespace

// The load is sequentially consistent, as progress.h wants: with less it could move before the caller's store of what a
// sleeper looks at, the sleeper would find nothing changed, and nobody would ring.
void ProcessDoorbell::ring() {
  if (on_bell.load(std::memory_order_seq_cst) == 0) return;
  bell.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(bell);
}

void ProgressEngine::ring() {
  full_fence();
  of_process().bell().ring();
}

ScopedSleeper::ScopedSleeper(std::atomic<std::uint64_t>& count) : count_(count) {
  count_.fetch_add(1, std::memory_order_seq_cst);
  // The fence orders the count before whatever kind of load the sleeper looks with next.
  full_fence();
}

ProgressEngine& ProgressEngine::of_process() {
  static std::atomic<ProgressEngine*> current{nullptr};
  ProgressEngine* known = current.load(std::memory_order_acquire);
  if (known != nullptr && known->owner_.is_here()) return *known;
  auto* const fresh = new ProgressEngine;  // never destroyed: groups and their waits may outlive all statics
  if (current.compare_exchange_strong(known, fresh, std::memory_order_acq_rel)) return *fresh;
  // Another thread was first.
  delete fresh;
  return *known;
}

// The page is zeros at first, which is what its words begin with.
ProgressEngine::ProgressEngine() : file_(make_file(file_error_)), bell_(map(file_ ? file_.get() : -1)) {}

int ProgressEngine::bell_file() const {
  if (!file_)
    throw SystemError(
        "shared memory: can't make the page by which the other ranks of this host wake this process (raise 'ulimit -n' "
        "or the memory limit)",
        file_error_);
  return file_.get();
}

std::shared_ptr<ProcessDoorbell> ProgressEngine::map_bell(const UniqueFd& file) {
  const struct stat status = status_of(file.get());
  if (status.st_size < static_cast<off_t>(kPage)) {
    throw CorruptData(
        fmt::format("shared memory: another rank sent a file of {} bytes as the page by which ranks wake its process, "
                    "and at least {} are needed; run the same build of lockstep on all ranks",
                    status.st_size, kPage));
  }
  const struct stat own = status_of(bell_file());
  // Its own bell is not mapped a second time: ThreadSanitizer and the reader of a core dump then see one word, not two.
  if (own.st_dev == status.st_dev && own.st_ino == status.st_ino) return bell_;
  return map(file.get());
}

std::shared_ptr<const ProgressEngine::Groups> ProgressEngine::groups() {
  MutexLock lock(mutex_);
  return groups_;
}

void ProgressEngine::add(std::shared_ptr<CallerDrivenGroup> group) {
  MutexLock lock(mutex_);
  auto changed = std::make_shared<Groups>(*groups_);
  changed->push_back(std::move(group));
  groups_ = std::move(changed);
}

void ProgressEngine::remove(const CallerDrivenGroup& group) {
  MutexLock lock(mutex_);
  auto changed = std::make_shared<Groups>(*groups_);
  std::erase_if(*changed, [&](const auto& one) { return one.get() == &group; });
  groups_ = std::move(changed);
}

bool ProgressEngine::is_only(const CallerDrivenGroup& own) {
  const auto all = groups();
  return std::all_of(all->begin(), all->end(), [&](const auto& group) { return group->group() == own.group(); });
}

// Works on a snapshot without the lock: a push may take long, and neither add() nor remove() of another thread may wait
// for it. The snapshot keeps a group alive that is removed meanwhile.
void ProgressEngine::push_all_but(const CallerDrivenGroup* own) {
  const auto all = groups();
  for (const auto& group : *all) {
    if (own == nullptr || group->group() != own->group()) group->push_for_another();
  }
}

void ProgressEngine::sleep(std::uint64_t rung, std::chrono::nanoseconds limit) {
  sleeps_.fetch_add(1, std::memory_order_relaxed);
  const bool woken = futex_wait(bell_->bell, rung, std::min<std::chrono::nanoseconds>(limit, kSlice));
  if (!woken) expired_.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace lockstep::comm
