// How an engine comes to run: its wire connects on the communication thread while the program's waits.
#include <fmt/format.h>

#include <exception>

#include "runtime/base/error.h"
#include "runtime/base/quiet_thread.h"
#include "runtime/comm/wire/engine.h"

namespace lockstep::wire {
namespace {

// While the library connects: between two looks at what has become of the others; and how far past the deadline its own
// message, which says more, may come.
constexpr std::chrono::milliseconds kLook{250};
constexpr std::chrono::seconds kOverdue{1};

}  // namespace

std::function<void()> start_own_thread(std::function<void()> body) {
  auto thread = std::make_shared<std::thread>(start_quiet_thread(std::move(body)));
  return [thread] { thread->join(); };
}

void WireEngine::open(const ThreadMaker& make_thread, const Deadline& deadline, const std::function<void()>& check) {
  // The library is called on the communication thread from its first call on; what it throws is thrown here.
  struct Start {
    Mutex mutex;
    Condition changed;
    bool over GUARDED_BY(mutex) = false;
    std::exception_ptr error GUARDED_BY(mutex);
  };
  const auto start = std::make_shared<Start>();
  join_ = make_thread([self = shared_from_this(), start, deadline] {
    std::exception_ptr error;
    try {
      self->wire_->open(*self, deadline);
    } catch (...) {
      error = std::current_exception();
    }
    {
      MutexLock lock(start->mutex);
      start->over = true;
      start->error = error;
      start->changed.notify_all();
    }
    if (error) {
      self->wire_->close(Deadline::after({}));
    } else {
      self->run();
    }
  });
  const auto is_over = [&](const Deadline& until) {
    MutexLock lock(start->mutex);
    while (!start->over && start->changed.wait_until(start->mutex, until)) {
    }
    return start->over;
  };
  try {
    while (!is_over(deadline.sooner(kLook))) {
      if (check) check();
      if (!deadline.expired() || is_over(Deadline::after(kOverdue))) continue;
      throw Timeout(
          fmt::format("{}: {} waits for {}, {}; see that every rank runs and has come so far, or raise the "
                      "timeout",
                      wire_->name(), who(rank_), wire_->opening(), deadline.progress()));
    }
  } catch (const PeerLost& lost) {
    give_up_opening(lost, is_over);
    throw_again(lost, fmt::format("{}; {} waited for {}", lost.what(), who(rank_), wire_->opening()));
  } catch (const Error& error) {
    give_up_opening(error, is_over);
    throw;
  }
  std::exception_ptr error;
  {
    MutexLock lock(start->mutex);
    error = start->error;
  }
  if (!error) return;
  join_();
  set_closed();
  try {
    std::rethrow_exception(error);
  } catch (const Error& own) {
    // What befell another rank comes first: it may be why this one can't connect.
    try {
      if (check) check();
    } catch (const PeerLost& lost) {
      throw_again(lost, fmt::format("{}; {}", lost.what(), own.what()));
    }
    throw;
  }
}

void WireEngine::give_up_opening(const Error& why, const std::function<bool(const Deadline&)>& is_over) {
  // Which interrupts.
  shutdown_.abandon(why.cause() != nullptr ? *why.cause()
                                           : shutdown_.cause_of(Cause::Kind::failed, rank_, why.what(), 0));
  if (wire_->can_interrupt_open()) {
    is_over(Deadline::never());
    join_();
  }
  set_closed();
}

void WireEngine::set_closed() {
  MutexLock lock(mutex_);
  closed_ = true;
}

}  // namespace lockstep::wire
