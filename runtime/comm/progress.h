// SPDX-License-Identifier: Apache-2.0
// A call that waits on the host for a group pushes every group of the process that only callers move, and sleeps on one
// word, the process's bell.
//
// A backend without a thread of its own, such as shm, moves only while somebody calls it. So a rank that waits for one
// group pushes the others too: a peer may wait for one of those. A thread that gives a sleeper something to do rings
// the bell: a rank of another process through the memory that they share, a communication thread through ring().
//
// Nobody is missed: a sleeper first counts itself as asleep, then reads the bell, then looks at what it awaits, and
// sleeps only while the bell is as it was; a ringer first changes what is looked at, then reads whether anybody is
// asleep. The sleeper's count and the ringer's change are each ahead of what follows them in the one order of
// sequentially consistent operations, so either the sleeper sees the change or the ringer sees the sleeper: the change
// is such an operation itself where a bell is rung directly, and ring() puts a fence behind it. A push that another
// thread of the process made at that moment is the exception: a change that it missed is seen after kSlice.
//
// Threads: any.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/base/owner_process.h"
#include "runtime/base/internal_api.h"
#include "runtime/base/mutex.h"
#include "runtime/base/unique_fd.h"

namespace lockstep::comm {

// A process's bell, in a page that its peers map. The process writes the counts; anybody rings.
struct alignas(64) ProcessDoorbell {
  std::atomic<std::uint64_t> on_bell;  // threads that sleep on the bell, or are about to
  std::atomic<std::uint64_t> on_word;  // threads that sleep on the one word of a peer that they wait for
  std::atomic<std::uint64_t> bell;     // grows with each ring

  // Wakes the threads that sleep on the bell, if there are any. The change that they are to see was a sequentially
  // consistent operation.
  LOCKSTEP_INTERNAL_API void ring();
};

// Counts a thread as asleep while this lives.
class LOCKSTEP_INTERNAL_API ScopedSleeper {
 public:
  explicit ScopedSleeper(std::atomic<std::uint64_t>& count);
  ~ScopedSleeper() { count_.fetch_sub(1, std::memory_order_release); }
  ScopedSleeper(const ScopedSleeper&) = delete;
  ScopedSleeper& operator=(const ScopedSleeper&) = delete;

 private:
  std::atomic<std::uint64_t>& count_;
};

// A group that only its callers move, as one rank has it.
class CallerDrivenGroup {
 public:
  // Equal for ranks of one group that are threads of this process. They push none of each other, as processes don't.
  virtual const void* group() const = 0;
  // Does what can be done now, unless another thread is at it. A failure of the group meanwhile is thrown by its own
  // next call.
  virtual void push_for_another() noexcept = 0;

 protected:
  ~CallerDrivenGroup() = default;
};

class LOCKSTEP_INTERNAL_API ProgressEngine {
 public:
  // How long a thread sleeps at most before it looks around.
  static constexpr std::chrono::milliseconds kSlice{50};

  // A child of fork() has one of its own, without its parent's groups.
  static ProgressEngine& of_process();

  // Called by a thread that has done something that threads of this process may wait for.
  static void ring();
  ProcessDoorbell& bell() { return *bell_; }
  const std::shared_ptr<ProcessDoorbell>& own_bell() const { return bell_; }
  // The page of bell(), for peers to map. Throws SystemError if this process could not make it.
  int bell_file() const;
  // The bell of the process that `file` was sent by; it may be this one. Throws SystemError and CorruptData.
  std::shared_ptr<ProcessDoorbell> map_bell(const UniqueFd& file);

  // From now on waits push `group`; until remove(), and a push that is under way then may end later.
  void add(std::shared_ptr<CallerDrivenGroup> group) EXCLUDES(mutex_);
  void remove(const CallerDrivenGroup& group) EXCLUDES(mutex_);
  // True if waits push no group.
  bool has_none() EXCLUDES(mutex_) { return groups()->empty(); }
  // True if waits push no other group than that of `own`.
  bool is_only(const CallerDrivenGroup& own) EXCLUDES(mutex_);
  // Pushes all groups but that of `own`, which may be null.
  void push_all_but(const CallerDrivenGroup* own) EXCLUDES(mutex_);
  // Sleeps while the bell is at `rung`, at most `limit` and kSlice. May return early.
  void sleep(std::uint64_t rung, std::chrono::nanoseconds limit);

  // How often threads have slept on the bell, and how often nobody rang until the limit.
  struct Counts {
    std::uint64_t sleeps = 0;
    std::uint64_t expired = 0;
  };
  Counts counts() const { return {sleeps_.load(std::memory_order_relaxed), expired_.load(std::memory_order_relaxed)}; }

 private:
  using Groups = std::vector<std::shared_ptr<CallerDrivenGroup>>;

  ProgressEngine();
  std::shared_ptr<const Groups> groups() EXCLUDES(mutex_);

  const OwnerProcess owner_;
  int file_error_ = 0;  // errno, where there is no file_
  const UniqueFd file_;
  const std::shared_ptr<ProcessDoorbell> bell_;
  std::atomic<std::uint64_t> sleeps_{0};
  std::atomic<std::uint64_t> expired_{0};
  Mutex mutex_;
  std::shared_ptr<const Groups> groups_ GUARDED_BY(mutex_) = std::make_shared<const Groups>();  // replaced, not changed
};

}  // namespace lockstep::comm
