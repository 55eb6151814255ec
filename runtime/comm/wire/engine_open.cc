// SPDX-License-Identifier: Apache-2.0
// The functions of this file start a WireEngine: the wire connects on the communication thread while the program's
// thread waits.
#include <fmt/format.h>

#include <future>
#include <string_view>

#include "lockstep/base/error.h"
#include "runtime/base/quiet_thread.h"
#include "runtime/comm/wire/engine.h"

namespace lockstep::wire {
namespace {

// The time between two calls of `check` while the library connects; `check` throws if another rank has failed.
constexpr std::chrono::milliseconds kLook{250};
// The time that open() waits after the deadline for the library's own exception, whose message says more than
// a Timeout.
constexpr std::chrono::seconds kOverdue{1};

}  // namespace

std::function<void()> start_own_thread(std::function<void()> body) {
  auto thread = std::make_shared<std::thread>(start_quiet_thread(std::move(body), "lockstep-comm"));
  return [thread] { thread->join(); };
}

void WireEngine::open(const ThreadMaker& make_thread, const Deadline& deadline, const std::function<void()>& check) {
  // The communication thread makes all calls of the transport's library, including the call that connects. This thread
  // rethrows the exception of Wire::open(), which runs on the communication thread.
  const auto opened = std::make_shared<std::promise<void>>();
  std::future<void> outcome = opened->get_future();
  join_ = make_thread([self = shared_from_this(), opened, deadline] {
    try {
      self->wire_->open(*self, deadline);
    } catch (const std::exception& error) {
      // The other ranks of this host have no connection to this rank, so only the proposed cause tells these ranks of
      // the failure. Propose the cause before set_exception(), because after set_exception() the program may exit.
      self->shutdown_.failure().propose_async(
          self->shutdown_.cause_of(Cause::Kind::failed, self->rank_, error.what(), 0));
      opened->set_exception(std::current_exception());
      return self->wire_->close(Deadline::after({}));
    }
    self->shutdown_.start();
    opened->set_value();
    self->run();
  });
  const auto is_over = [&](const Deadline& until) {
    return outcome.wait_for(until.remaining()) == std::future_status::ready;
  };
  try {
    while (!is_over(deadline.sooner(kLook))) {
      if (check) check();
      if (!deadline.expired() || is_over(Deadline::after(kOverdue))) continue;
      throw Timeout(
          fmt::format("{}: {} timed out waiting for {}, {}; see that every rank still runs and reaches this call, or "
                      "raise the timeout",
                      wire_->name(), who(rank_), wire_->opening(), deadline.progress()));
    }
  } catch (const PeerLost& lost) {
    give_up_opening(lost, outcome);
    throw_again(lost, fmt::format("{}; {} waited for {}", lost.what(), who(rank_), wire_->opening()));
  } catch (const Error& error) {
    give_up_opening(error, outcome);
    throw;
  }
  try {
    outcome.get();
  } catch (const std::exception& own) {
    join_();
    set_closed();
    // If `check` throws another rank's failure, throw that failure instead of this rank's failure, because the other
    // rank's failure may have caused this rank's failure.
    try {
      if (check) check();
    } catch (const PeerLost& lost) {
      if (std::string_view(own.what()) == lost.what()) throw;
      throw_again(lost, fmt::format("{}; {}", lost.what(), own.what()));
    }
    throw;
  }
}

void WireEngine::give_up_opening(const Error& why, std::future<void>& outcome) {
  // Propose the failure before waiting for `outcome`, because the proposal interrupts the wire. If the transport's
  // library can't be interrupted, the communication thread stays in the library's call and keeps the engine alive.
  shutdown_.failure().propose_async(
      why.cause() != nullptr ? *why.cause() : shutdown_.cause_of(Cause::Kind::failed, rank_, why.what(), 0));
  if (wire_->can_interrupt_open()) {
    outcome.wait();
    join_();
  }
  set_closed();
}

void WireEngine::set_closed() {
  MutexLock lock(mutex_);
  closed_ = true;
}

}  // namespace lockstep::wire
