// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/shm/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

#include "lockstep/base/error.h"
#include "runtime/comm/failure/messages.h"
#include "runtime/comm/futex.h"
#include "runtime/comm/shm/liveness.h"

namespace lockstep::shm {
namespace {

// Longer than any flag takes to cross the machine, shorter than a sleep and a wake-up.
constexpr std::chrono::microseconds kSpin{5};
// Looks without a pause for the clock: longer than a flag takes between two cores.
constexpr int kLooksPerClock = 32;

constexpr std::atomic<std::uint64_t> RankWords::*kWords[] = {
    &RankWords::finished, &RankWords::staged, &RankWords::reduced, &RankWords::drained, &RankWords::messages};

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Spinning costs nobody anything if there is a core for every rank. Each counts the cores it may use; bound to one core
// each, they have as many as there are different ones.
bool every_rank_has_a_core(const ControlBlock& control, int ranks) {
  std::array<std::uint64_t, 16> all{};
  bool quota_suffices = true;
  for (int r = 0; r < ranks; ++r) {
    const RankInfo& info = control.info(r);
    std::uint64_t own = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i] |= info.core_set[i];
      own += static_cast<std::uint64_t>(std::popcount(info.core_set[i]));
    }
    // Fewer cores than the mask has: a quota, which the ranks share.
    if (info.cores < own && info.cores < static_cast<std::uint64_t>(ranks)) quota_suffices = false;
  }
  int different = 0;
  for (const std::uint64_t word : all) different += std::popcount(word);
  return quota_suffices && different >= ranks;
}

}  // namespace

Session::Session(std::shared_ptr<Mapping> control, Bells bells, rendezvous::Roster roster, int rank,
                 std::function<void(const Cause&)> on_throw)
    : mapping_(std::move(control)),
      control_(mapping_->data(), static_cast<int>(roster.size())),
      bells_(std::move(bells)),
      roster_(std::move(roster)),
      rank_(rank),
      size_(static_cast<int>(roster_.size())),
      may_spin_(every_rank_has_a_core(control_, size_)),
      on_throw_(std::move(on_throw)) {
  for (std::size_t r = 0; r < bells_.size(); ++r) {
    if (static_cast<int>(r) != rank_) peers_.push_back(bells_[r].get());
  }
  std::sort(peers_.begin(), peers_.end());
  peers_.erase(std::unique(peers_.begin(), peers_.end()), peers_.end());
}

bool Session::ring() const {
  bool on_word = false;
  for (comm::ProcessDoorbell* const peer : peers_) {
    peer->ring();
    on_word |= peer->on_word.load(std::memory_order_seq_cst) != 0;
  }
  return on_word;
}

void Session::wake(const std::atomic<std::uint64_t>& word) const {
  if (ring()) comm::futex_wake_all(word);
}

// Sets the word, then looks whether anybody sleeps: comm/progress.h says why nobody is missed. For a sleeper on this
// very word the kernel makes sure once more: it compares the word before it lets the thread sleep. A change that is
// missed all the same, as by post_quietly(), is seen at the end of the sleeper's patience.
void Session::post(Word word, std::uint64_t value) {
  ++moves_;
  (own().*word).exchange(value, std::memory_order_seq_cst);
  wake(own().*word);
}

void Session::post_quietly(Word word, std::uint64_t value) {
  ++moves_;
  (own().*word).store(value, std::memory_order_release);
  wake(own().*word);
}

void Session::announce(std::uint64_t sequence) {
  ++moves_;
  auto& flag = control_.announcement(rank_, sequence).sequence;
  flag.exchange(sequence, std::memory_order_seq_cst);
  own().started.store(sequence, std::memory_order_release);
  wake(flag);
}

void Session::wake_all(int rank) const {
  for (const auto word : kWords) comm::futex_wake_all(words(rank).*word);
  for (std::uint64_t slot = 0; slot < kRing; ++slot) comm::futex_wake_all(control_.announcement(rank, slot).sequence);
}

// The text is written before the claim, and the claim is a release: a rank that reads the claim with acquire reads the
// whole text. Claimed first, a rank could decode half a cause. `aborted_` lets one thread of this rank write its text,
// for two would mix theirs; other ranks write into texts of their own, and one compare-and-swap decides.
bool Session::abort(const Cause& cause) {
  MutexLock lock(abort_mutex_);
  if (aborted_ || failed()) return false;
  aborted_ = true;
  FailureText& failure = control_.failure(rank_);
  const std::string bytes = encode(cause, failure.bytes.size());
  failure.length = bytes.size();
  std::memcpy(failure.bytes.data(), bytes.data(), bytes.size());
  std::uint32_t none = 0;
  const bool first = control_.header().first_failure.compare_exchange_strong(
      none, static_cast<std::uint32_t>(rank_) + 1, std::memory_order_acq_rel);
  // A thread between its look and its sleep finds out at the end of its slice.
  for (const auto& bell : bells_) bell->ring();  // its own too: any thread may abort
  for (int r = 0; r < size_; ++r) wake_all(r);
  return first;
}

void Session::on_peer_failure(Cause cause) {
  if (failed()) return;
  if (const auto rank = comm::rank_in(roster_, cause.rank)) {
    if (*rank != rank_ && (has_left(*rank) || process_is_gone(mapping_->fd(), control_, *rank))) return;
    const std::uint64_t started = words(*rank).started.load(std::memory_order_acquire);
    cause.sequence = static_cast<std::int64_t>(started);
    cause.text += fmt::format("; the last collective it had started is {}", started);
  }
  cause.text = comm::named_by_group(roster_, std::move(cause.text));
  abort(cause);
}

void Session::fail(Cause::Kind kind, int rank, std::string text, std::int64_t sequence) {
  abort(cause_of(kind, rank, std::move(text), sequence));
  throw_first_cause();
}

void Session::throw_first_cause() const {
  const std::uint32_t claimed_by = control_.header().first_failure.load(std::memory_order_acquire) - 1;
  const FailureText& failure = control_.failure(static_cast<int>(claimed_by));
  const auto cause = decode_cause({failure.bytes.data(), static_cast<std::size_t>(failure.length)});
  if (!cause)
    throw CorruptData(
        fmt::format("shared memory: the group of {} has failed, and no readable cause is in its control block; look at "
                    "the other ranks' output",
                    who(rank_)));
  if (on_throw_) on_throw_(*cause);
  throw_error(cause->as_read_by(comm::job_rank(roster_, rank_)));
}

// `left_after` is the last word that this rank writes: who reads it reads every flag the rank set before (late() looks
// at the flag once more for that reason). Set earlier, it would call a rank gone whose part is done a moment later.
void Session::leave(std::uint64_t last) {
  own().left_after.store(last + 1, std::memory_order_seq_cst);
  if (ring()) wake_all(rank_);
}

void Session::check_peers_alive(std::string_view what) {
  for (int r = 0; r < size_; ++r) {
    if (r == rank_ || has_left(r) || !process_is_gone(mapping_->fd(), control_, r)) continue;
    // Asked again behind the lock: a rank says goodbye before it frees its life lock.
    if (has_left(r)) continue;  // it said goodbye in between
    const std::uint64_t started = words(r).started.load(std::memory_order_acquire);
    fail(Cause::Kind::lost, r,
         fmt::format("{} has died: its process ended, by a signal or an exit, without closing its group; "
                     "{} was in {}; the last collective it had started is {}",
                     who(r), who(rank_), what, started),
         static_cast<std::int64_t>(started));
  }
}

bool Session::spin(Pollable& awaited) {
  using Clock = std::chrono::steady_clock;
  std::uint64_t moves = moves_ - 1;
  Clock::time_point until;
  for (;;) {
    for (int i = 0; i < kLooksPerClock; ++i) {
      if (awaited.push().done()) return true;
      pause_briefly();
    }
    const Clock::time_point now = Clock::now();
    if (moves != moves_) {
      moves = moves_;
      until = now + kSpin;
    } else if (now >= until) {
      return false;
    }
  }
}

// One word of a peer costs fewer wake-ups than the bell, which rings for all that happens in any group. It will do
// where nothing else in this process can move.
bool Session::sleep_until_changed(Pollable& awaited, const Deadline& deadline, const comm::CallerDrivenGroup& group) {
  comm::ProgressEngine& progress = comm::ProgressEngine::of_process();
  comm::ProcessDoorbell& bell = progress.bell();
  const bool on_word = awaited.is_alone() && progress.is_only(group);
  const comm::ScopedSleeper asleep(on_word ? bell.on_word : bell.on_bell);
  const std::uint64_t rung = bell.bell.load(std::memory_order_seq_cst);
  // Counted asleep first, then the bell, then the look (push()): in another order a ring between look and sleep is
  // missed.
  const std::uint64_t moves = moves_;
  const WaitWord wait_word = awaited.push();
  if (wait_word.done()) return true;
  const auto limit = std::min<Deadline::Duration>(awaited.patience(), deadline.remaining());
  if (on_word) {
    comm::futex_wait(*wait_word.word, wait_word.value, limit);
    return false;
  }
  // A rank does not ring for itself, and what it moved may be half of a message to itself.
  if (moves_ != moves) return false;
  progress.push_all_but(&group);
  progress.sleep(rung, limit);
  return false;
}

void Session::wait(Pollable& awaited, const Deadline& deadline, const comm::CallerDrivenGroup& group) {
  using Clock = std::chrono::steady_clock;
  std::optional<Clock::time_point> next_look;
  while (!awaited.push().done()) {
    if (may_spin_ && spin(awaited)) return;
    if (!next_look) next_look = Clock::now() + comm::ProgressEngine::kSlice;
    if (sleep_until_changed(awaited, deadline, group)) return;
    const bool expired = deadline.expired();
    if (!expired && Clock::now() < *next_look) continue;
    next_look = Clock::now() + comm::ProgressEngine::kSlice;
    // Before the timeout: a dead peer is the cause of a wait that is too long.
    check_peers_alive(awaited.describe());
    if (!expired) continue;
    // One look more: the deadline may have passed while this process was suspended, and all is there.
    if (awaited.push().done()) return;
    const comm::Stragglers missing = awaited.missing();
    fail(Cause::Kind::timeout, missing.only(),
         comm::timeout_text(awaited.describe(), who(rank_), deadline, missing.text), awaited.sequence());
  }
}

}  // namespace lockstep::shm
