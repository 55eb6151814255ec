#include "runtime/comm/shm/engine.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/error.h"

namespace lockstep::shm {

void Engine::check() const {
  session_.check();
  if (closed_) {
    throw InvalidArgument(
        fmt::format("{}: the group was destroyed before this work was done; wait for each work, or "
                    "keep the group for longer",
                    session_.who(session_.rank())));
  }
}

namespace {

// The ranks that still use a slot of the ring.
class FreeSlot final : public Awaited {
 public:
  FreeSlot(Engine& engine, std::uint64_t needed) : engine_(engine), needed_(needed) {}

  Blocker push() override {
    engine_.check();
    const Blocker blocker = engine_.push();
    if (engine_.session().own().finished.load(std::memory_order_relaxed) < needed_) return blocker;
    for (int r = 0; r < engine_.session().size(); ++r) {
      const auto& finished = engine_.session().words(r).finished;
      const std::uint64_t value = finished.load(std::memory_order_acquire);
      if (value >= needed_ || engine_.session().has_left(r)) continue;  // who left: what comes next finds out
      return {&finished, value};
    }
    return {};
  }
  bool is_alone() const override { return !engine_.mailbox().pending(); }
  // A rank that finishes an inlined collective may miss that somebody sleeps on it (Session::post_quietly).
  std::chrono::milliseconds patience() const override { return std::chrono::milliseconds(1); }
  std::string describe() const override {
    return fmt::format("starting collective {}, with {} in flight", engine_.last_sequence() + 1, kRing);
  }
  Missing missing() const override {
    Missing late{{}, fmt::format("not through collective {}: ", needed_)};
    for (int r = 0; r < engine_.session().size(); ++r) {
      if (engine_.session().words(r).finished.load(std::memory_order_acquire) >= needed_) continue;
      late.text += (late.ranks.empty() ? "" : ", ") + engine_.session().who(r);
      late.ranks.push_back(r);
    }
    return late;
  }

 private:
  Engine& engine_;
  std::uint64_t needed_;
};

}  // namespace

void Engine::wait_for_slot(std::uint64_t sequence, std::chrono::nanoseconds timeout) {
  if (sequence <= free_until_) return;
  FreeSlot slot(*this, sequence - kRing);
  if (!slot.push().done()) session_.wait(slot, Deadline::after(timeout));
  std::uint64_t finished_by_all = ~0ull;
  for (int r = 0; r < session_.size(); ++r) {
    finished_by_all = std::min(finished_by_all, session_.words(r).finished.load(std::memory_order_acquire));
  }
  free_until_ = finished_by_all + kRing;
}

std::shared_ptr<Operation> Engine::start(Task task, std::chrono::nanoseconds timeout) {
  check();
  const std::uint64_t sequence = last_ + 1;
  wait_for_slot(sequence, timeout);
  auto operation = std::make_shared<Operation>(shared_from_this(), std::move(task), sequence);
  operation->collective().publish(floor());
  ring_[sequence % kRing] = operation;
  last_ = sequence;
  session_.announce(sequence);
  push();
  return operation;
}

Blocker Engine::push() {
  session_.check();
  if (mailbox_.pending()) mailbox_.push();
  while (done_ < last_) {
    auto& operation = ring_[(done_ + 1) % kRing];
    const Blocker blocker = operation->collective().step(floor());
    if (!blocker.done()) return blocker;
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

void Engine::progress() {
  check();
  push();
}

void Engine::abort_for(std::string text) {
  session_.abort(
      session_.cause_of(Cause::Kind::failed, session_.rank(), std::move(text), static_cast<std::int64_t>(last_)));
}

void Engine::close() {
  if (closed_) return;
  if (!session_.failed()) {
    try {
      push();
    } catch (const Error&) {
      // The group failed: its ranks know the cause, and there is nobody left to tell here.
    }
    if (done_ < last_ || mailbox_.owed() > 0) {
      abort_for(
          fmt::format("{} destroyed its group with {} collectives and {} messages under way; it must wait for "
                      "each work first",
                      session_.who(session_.rank()), last_ - done_, mailbox_.owed()));
    }
  }
  session_.leave(last_);
  closed_ = true;
  ring_.fill(nullptr);  // the works hold the engine
}

void Engine::close_unwinding() {
  abort_for(fmt::format("{} was ended by an exception of its own after collective {}; its own message says more",
                        session_.who(session_.rank()), last_));
  session_.leave(last_);
  closed_ = true;
  ring_.fill(nullptr);
}

Blocker Operation::push() {
  if (done_) return {};
  engine_->check();
  const Blocker blocker = engine_->push();
  if (engine_->done_ < collective_.sequence()) return blocker;
  const Blocker reader = collective_.unfinished_reader(engine_->session());
  done_ = reader.done();
  return reader;
}

void Operation::wait(const Deadline& deadline) {
  if (!push().done()) engine_->session().wait(*this, deadline);
}

Missing Operation::missing() const { return collective_.missing(engine_->session()); }

bool MessageWork::poll() {
  if (parcel_->done) return true;
  return push().done();
}

void MessageWork::wait(const Deadline& deadline) {
  if (!poll()) engine_->session().wait(*this, deadline);
}

Blocker MessageWork::push() {
  if (parcel_->done) return {};
  engine_->check();
  // First the peer's counter, then its messages: what comes between is seen at the next look.
  const auto& messages = engine_->session().words(parcel_->peer).messages;
  const std::uint64_t seen = messages.load(std::memory_order_acquire);
  engine_->push();
  if (!parcel_->done) engine_->mailbox().check_peer(*parcel_);
  return parcel_->done ? Blocker{} : Blocker{&messages, seen};
}

Missing MessageWork::missing() const { return {{parcel_->peer}, engine_->mailbox().progress_of(*parcel_)}; }

}  // namespace lockstep::shm
