#include "runtime/comm/shm/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "runtime/base/error.h"
#include "runtime/comm/shm/futex.h"
#include "runtime/comm/shm/liveness.h"

namespace lockstep::shm {
namespace {

// Longer than any flag takes to cross the machine, shorter than a sleep and a wake-up.
constexpr std::chrono::microseconds kSpin{5};
// How long a rank sleeps before it looks whether the others are alive and the group is whole.
constexpr std::chrono::milliseconds kSlice{50};

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Spinning costs nobody anything if there is a core for every rank. Each counts the cores it may use; bound to one core
// each, they have as many as there are different ones.
bool every_rank_has_a_core(const Control& control, int ranks) {
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

Session::Session(std::shared_ptr<Mapping> control, rendezvous::Roster roster, int rank)
    : mapping_(std::move(control)),
      control_(mapping_->data(), static_cast<int>(roster.size())),
      roster_(std::move(roster)),
      rank_(rank),
      size_(static_cast<int>(roster_.size())),
      may_spin_(every_rank_has_a_core(control_, size_)) {}

void Session::announce() {
  ++moves_;
  own().activity.fetch_add(1, std::memory_order_seq_cst);
  for (int r = 0; r < size_; ++r) {
    if (r != rank_ && (words(r).naps.load(std::memory_order_seq_cst) & 1u) != 0) return futex_wake_all(own().activity);
  }
}

bool Session::abort(Cause cause, const std::string& text) {
  MutexLock lock(abort_mutex_);
  if (aborted_ || failed()) return false;
  aborted_ = true;
  FailureText& failure = control_.failure(rank_);
  failure.cause = cause;
  failure.length = static_cast<std::uint32_t>(std::min(text.size(), failure.text.size()));
  std::memcpy(failure.text.data(), text.data(), failure.length);
  std::uint32_t none = 0;
  const bool first = control_.header().first_failure.compare_exchange_strong(
      none, static_cast<std::uint32_t>(rank_) + 1, std::memory_order_acq_rel);
  // Whoever is between looking and falling asleep finds out at the end of its slice.
  for (int r = 0; r < size_; ++r) futex_wake_all(words(r).activity);
  return first;
}

void Session::fail(Cause cause, const std::string& text) {
  abort(cause, text);
  throw_first_cause();
}

void Session::throw_first_cause() const {
  const std::uint32_t culprit = control_.header().first_failure.load(std::memory_order_acquire) - 1;
  const FailureText& failure = control_.failure(static_cast<int>(culprit));
  const std::string text(failure.text.data(), failure.length);
  switch (failure.cause) {
    case Cause::timeout: throw Timeout(text);
    case Cause::mismatch: throw Mismatch(text);
    case Cause::peer_lost: break;
  }
  throw PeerLost(text);
}

std::string Session::left_text(int rank) const {
  const std::uint64_t left_after = words(rank).left_after.load(std::memory_order_acquire);
  if (left_after == 0) return {};
  return fmt::format("{} left after collective {}", who(rank), left_after - 1);
}

void Session::leave(std::uint64_t last) {
  own().left_after.store(last + 1, std::memory_order_release);
  announce();
}

void Session::check_lives(const Awaited& awaited) {
  for (int r = 0; r < size_; ++r) {
    if (r == rank_ || has_left(r) || !process_is_gone(mapping_->fd(), control_, r)) continue;
    if (has_left(r)) continue;  // it said goodbye in between
    fail(Cause::peer_lost,
         fmt::format("{} has died: its process ended, by a signal or an exit, without closing its group; "
                     "{} was in {}; the last collective it had started is {}",
                     who(r), who(rank_), awaited.describe(), words(r).published.load(std::memory_order_acquire)));
  }
}

bool Session::spin(Awaited& awaited) {
  using Clock = std::chrono::steady_clock;
  std::uint64_t moves = moves_;
  Clock::time_point until = Clock::now() + kSpin;
  for (;;) {
    for (int i = 0; i < 16; ++i) {
      if (awaited.push() == Awaited::kDone) return true;
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

bool Session::nap(Awaited& awaited, int blocker, const Deadline& deadline) {
  // Say so first, then look again: either the blocker sees that somebody sleeps, or this rank sees what it did.
  own().naps.fetch_add(1, std::memory_order_seq_cst);
  const auto& activity = words(blocker).activity;
  const std::uint32_t seen = activity.load(std::memory_order_seq_cst);
  int still = blocker;
  try {
    still = awaited.push();
  } catch (...) {
    own().naps.fetch_add(1, std::memory_order_seq_cst);
    throw;
  }
  if (still == blocker) futex_wait(activity, seen, std::min<Deadline::Duration>(kSlice, deadline.remaining()));
  own().naps.fetch_add(1, std::memory_order_seq_cst);
  return still == Awaited::kDone;
}

void Session::wait(Awaited& awaited, const Deadline& deadline) {
  auto next_look = std::chrono::steady_clock::time_point::max();
  for (;;) {
    int blocker = awaited.push();
    if (blocker == Awaited::kDone) return;
    if (may_spin_) {
      if (spin(awaited)) return;
      blocker = awaited.push();
      if (blocker == Awaited::kDone) return;
    }
    if (next_look == std::chrono::steady_clock::time_point::max())
      next_look = std::chrono::steady_clock::now() + kSlice;
    if (nap(awaited, blocker, deadline)) return;
    const bool expired = deadline.expired();
    if (!expired && std::chrono::steady_clock::now() < next_look) continue;
    next_look = std::chrono::steady_clock::now() + kSlice;
    check_lives(awaited);
    if (!expired) continue;
    if (awaited.push() == Awaited::kDone) return;
    fail(Cause::timeout, fmt::format("{} on {} timed out, {}; {}; see why it is late, or raise the timeout",
                                     awaited.describe(), who(rank_), deadline.progress(), awaited.missing()));
  }
}

}  // namespace lockstep::shm
