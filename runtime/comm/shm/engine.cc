// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/shm/engine.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/comm/failure/messages.h"

namespace lockstep::shm {

void ShmEngine::check() const {
  session_.check();
  if (closed_) {
    comm::throw_closed(session_.who(session_.rank()));
  }
}

// The ranks that still use a slot of the ring.
class FreeSlot final : public Pollable {
 public:
  FreeSlot(ShmEngine& engine, std::uint64_t needed) : engine_(engine), needed_(needed) {}

  WaitWord push() override {
    engine_.assert_locked();
    engine_.check();
    const WaitWord wait_word = engine_.push();
    if (engine_.session().own().finished.load(std::memory_order_relaxed) < needed_) return wait_word;
    for (int r = 0; r < engine_.session().size(); ++r) {
      const auto& finished = engine_.session().words(r).finished;
      const std::uint64_t value = finished.load(std::memory_order_acquire);
      if (value >= needed_ || engine_.session().has_left(r)) continue;  // who left: what comes next finds out
      return {&finished, value};
    }
    return {};
  }
  bool is_alone() const override {
    engine_.assert_locked();
    return !engine_.p2p_queue_.pending();
  }
  // A rank that finishes an inlined collective may miss that somebody sleeps on it (Session::post_quietly).
  std::chrono::milliseconds patience() const override { return std::chrono::milliseconds(1); }
  std::string describe() const override {
    engine_.assert_locked();
    return fmt::format("starting collective {}, with {} in flight", engine_.last_ + 1, kRing);
  }
  comm::Stragglers missing() const override {
    comm::Stragglers late{.text = fmt::format("not finished with collective {}: ", needed_)};
    for (int r = 0; r < engine_.session().size(); ++r) {
      if (engine_.session().words(r).finished.load(std::memory_order_acquire) >= needed_) continue;
      late.add(r, engine_.session().who(r));
    }
    return late;
  }

 private:
  ShmEngine& engine_;
  std::uint64_t needed_;
};

void ShmEngine::wait_for_slot(std::uint64_t sequence, std::chrono::nanoseconds timeout) {
  if (sequence <= free_until_) return;
  FreeSlot slot(*this, sequence - kRing);
  if (!slot.push().done()) wait(slot, Deadline::after(timeout));
  std::uint64_t finished_by_all = ~0ull;
  for (int r = 0; r < session_.size(); ++r) {
    finished_by_all = std::min(finished_by_all, session_.words(r).finished.load(std::memory_order_acquire));
  }
  free_until_ = finished_by_all + kRing;
}

std::shared_ptr<Operation> ShmEngine::start(CollectiveArgs args, std::chrono::nanoseconds timeout) {
  MutexLock lock(mutex_);
  check();
  const std::uint64_t sequence = last_ + 1;
  wait_for_slot(sequence, timeout);
  auto operation = std::make_shared<Operation>(shared_from_this(), std::move(args), sequence);
  ring_[sequence % kRing] = operation;
  // From here to the announcement no atomic operation waits for the stores of the payload.
  operation->collective().publish(context(), done_ == last_);
  last_ = sequence;
  session_.announce(sequence);
  push();
  return operation;
}

std::shared_ptr<WorkState> ShmEngine::start(ShmP2pOp p2p) {
  MutexLock lock(mutex_);
  check();
  push();
  return std::make_shared<ShmMessageWork>(shared_from_this(), p2p_queue_.start(std::move(p2p)));
}

WaitWord ShmEngine::push() {
  session_.check();
  if (p2p_queue_.pending()) p2p_queue_.push();
  while (done_ < last_) {
    auto& operation = ring_[(done_ + 1) % kRing];
    const WaitWord wait_word = operation->collective().step(context());
    if (!wait_word.done()) return wait_word;
    // The part is complete before `finished` is posted: peers then fill the memory anew that this rank has read.
    ++done_;
    if (operation->collective().is_waited_for()) {
      session_.post(&RankWords::finished, done_);
    } else {
      session_.post_quietly(&RankWords::finished, done_);
    }
    operation.reset();
  }
  return {};
}

void ShmEngine::progress() {
  MutexLock lock(mutex_);
  check();
  push();
}

// A thread that is in the group moves it itself, and one that leaves the group now has just pushed it.
void ShmEngine::push_for_another() noexcept {
  // Never waits for the lock: its holder may itself push the caller's group, and wait for that lock.
  if (!mutex_.try_lock()) return;
  if (!closed_ && !session_.failed() && (has_collectives() || p2p_queue_.pending())) {
    try {
      std::uint64_t moves = 0;
      do {  // a push may post half of a message to itself, for which nobody rings
        moves = session_.moves();
        push();
      } while (session_.moves() != moves);
    } catch (const std::exception& error) {
      log_debug("{} failed while another group of the process was waited for: {}", session_.who(session_.rank()),
                error.what());
    }
  }
  mutex_.unlock();
}

void ShmEngine::forget_dropped() {
  MutexLock lock(mutex_);
  arenas_.forget_dropped();
}

Arena ShmEngine::add_arena(std::shared_ptr<Mapping> memory, std::size_t bytes) {
  MutexLock lock(mutex_);
  return arenas_.add(std::move(memory), bytes);
}

ArenaOffset ShmEngine::find(const ConstBufferView& buffer) {
  MutexLock lock(mutex_);
  return arenas_.find(buffer);
}

std::byte* ShmEngine::address(int rank, const ArenaOffset& offset) {
  MutexLock lock(mutex_);
  return arenas_.address(rank, offset);
}

void ShmEngine::abort_for(std::string text) {
  session_.abort(
      session_.cause_of(Cause::Kind::failed, session_.rank(), std::move(text), static_cast<std::int64_t>(last_)));
}

// The ring holds operations, which hold the engine: it is emptied, or neither would ever go. The caller holds the lock
// and a reference: a wait for another group must not push this one after its goodbye, and the ring's may be the last
// reference.
void ShmEngine::leave() {
  session_.leave(last_);
  closed_ = true;
  ring_.fill(nullptr);  // the works hold the engine
  comm::ProgressEngine::of_process().remove(*this);
}

// One push before the question what is not done: peers may have announced what this rank has not looked at yet, and an
// abort would fail them for nothing.
void ShmEngine::close() {
  const auto self = shared_from_this();  // what leave() lets go of may be the last to hold it
  MutexLock lock(mutex_);
  if (closed_) return;
  if (!session_.failed()) {
    try {
      push();
    } catch (const Error&) {
      // The group failed: its ranks know the cause, and there is nobody left to tell here.
    }
    if (done_ < last_ || p2p_queue_.owed() > 0) {
      abort_for(comm::destroyed_text(session_.who(session_.rank()), last_ - done_, p2p_queue_.owed()));
    }
  }
  leave();
}

void ShmEngine::close_unwinding() {
  const auto self = shared_from_this();
  MutexLock lock(mutex_);
  abort_for(comm::unwound_text(session_.who(session_.rank()), last_));
  leave();
}

bool Operation::poll() {
  if (done_) return true;
  MutexLock lock(engine_->mutex_);
  return push().done();
}

WaitWord Operation::push() {
  if (done_) return {};
  engine_->assert_locked();
  engine_->check();
  const WaitWord wait_word = engine_->push();
  if (engine_->done_ < collective_.sequence()) return wait_word;
  // Done here is not enough where peers read this rank's own memory: the program may change it once the work is done.
  const WaitWord reader = collective_.unfinished_reader(engine_->session());
  done_ = reader.done();
  return reader;
}

void Operation::wait(const Deadline& deadline) {
  MutexLock lock(engine_->mutex_);
  if (!push().done()) engine_->wait(*this, deadline);
}

bool Operation::is_alone() const {
  engine_->assert_locked();
  return !engine_->p2p_queue_.pending();
}

comm::Stragglers Operation::missing() const { return collective_.missing(engine_->session()); }

bool ShmMessageWork::poll() {
  MutexLock lock(engine_->mutex_);
  return push().done();
}

void ShmMessageWork::wait(const Deadline& deadline) {
  MutexLock lock(engine_->mutex_);
  if (!push().done()) engine_->wait(*this, deadline);
}

bool ShmMessageWork::is_alone() const {
  engine_->assert_locked();
  return !engine_->has_collectives() && !engine_->p2p_queue_.waits_for_others_than(p2p_->peer);
}

WaitWord ShmMessageWork::push() {
  if (p2p_->done) return {};
  engine_->assert_locked();
  engine_->check();
  // First the peer's counter, then its messages: what comes between is seen at the next look.
  const auto& messages = engine_->session().words(p2p_->peer).messages;
  const std::uint64_t seen = messages.load(std::memory_order_acquire);
  engine_->push();
  if (!p2p_->done) engine_->p2p_queue_.check_peer(*p2p_);
  return p2p_->done ? WaitWord{} : WaitWord{&messages, seen};
}

comm::Stragglers ShmMessageWork::missing() const {
  engine_->assert_locked();
  return {{p2p_->peer}, engine_->p2p_queue_.progress_of(*p2p_)};
}

}  // namespace lockstep::shm
