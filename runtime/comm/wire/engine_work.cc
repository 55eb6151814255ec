// SPDX-License-Identifier: Apache-2.0
// The functions of this file start collectives and messages on the program's thread, and wait for their end.
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <exception>

#include "runtime/base/text.h"
#include "runtime/comm/failure/messages.h"
#include "runtime/comm/wire/engine.h"

namespace lockstep::wire {
namespace {

// The number of bytes above which a collective takes so long that the program's thread sleeps instead of doing the
// communication thread's work.
constexpr std::size_t kMostDrivenBytes = 1 << 20;

}  // namespace

// WireMessageWork is the WorkState of a send or recv.
class WireMessageWork final : public WorkState {
 public:
  WireMessageWork(std::shared_ptr<WireEngine> engine, std::shared_ptr<WireP2pOp> p2p)
      : engine_(std::move(engine)), p2p_(std::move(p2p)) {}

  bool poll() override {
    {
      MutexLock lock(engine_->mutex_);
      if (p2p_->done) return true;
    }
    if (engine_->shutdown_.failure().happened()) engine_->shutdown_.raise();
    return false;
  }
  void wait(const Deadline& deadline) override {
    const WireEngine::Outcome outcome = engine_->wait_for(deadline, [&] { return p2p_->done; });
    if (outcome == WireEngine::Outcome::failed) engine_->shutdown_.raise();
    if (outcome == WireEngine::Outcome::done) return;
    comm::Stragglers progress{{p2p_->peer}, {}};
    {
      MutexLock lock(engine_->mutex_);
      progress.text = engine_->p2p_queue_.progress_of(*p2p_);
    }
    engine_->time_out(p2p_->describe(), progress, deadline);
  }

 private:
  std::shared_ptr<WireEngine> engine_;
  std::shared_ptr<WireP2pOp> p2p_;
};

void WireEngine::check() const {
  if (shutdown_.failure().happened()) shutdown_.raise();
  MutexLock lock(mutex_);
  if (closed_) comm::throw_closed(who(rank_));
}

std::shared_ptr<WireCollective> WireEngine::start(comm::CollectiveArgs args) {
  check();
  std::shared_ptr<WireCollective> collective;
  {
    MutexLock lock(mutex_);
    collective = std::make_shared<WireCollective>(shared_from_this(), std::move(args), ++last_);
    queue_.push_back(collective);
  }
  // Wake the communication thread both by the token and by the wire: a thread that naps notices only a request of the
  // token, and a thread that sleeps on the wire notices only wake(). The communication thread reads queue_ after
  // waking, so push to queue_ before waking the communication thread.
  token_.request_unless_callers_follow();
  wire_->wake();
  return collective;
}

std::shared_ptr<WorkState> WireEngine::start(WireP2pOp p2p) {
  check();
  std::shared_ptr<WireP2pOp> started;
  {
    MutexLock lock(mutex_);
    started = p2p_queue_.start(std::move(p2p));
  }
  token_.request();
  wire_->wake();
  return std::make_shared<WireMessageWork>(shared_from_this(), std::move(started));
}

template <typename Done>
WireEngine::Outcome WireEngine::wait_for(const Deadline& deadline, Done done) {
  comm::ProgressEngine& progress = comm::ProgressEngine::of_process();
  for (;;) {
    // Count this thread as a sleeper before calling done(), so that a ring of the process's bell after done() wakes
    // this thread.
    const comm::ScopedSleeper asleep(progress.bell().on_bell);
    const std::uint64_t rung = progress.bell().bell.load(std::memory_order_seq_cst);
    {
      MutexLock lock(mutex_);
      if (done()) return Outcome::done;
    }
    if (shutdown_.failure().happened()) return Outcome::failed;
    if (deadline.expired()) return Outcome::late;
    progress.push_all_but(nullptr);
    progress.sleep(rung, deadline.remaining());
  }
}

void WireEngine::drive(const WireCollective& collective, const Deadline& deadline) {
  const std::chrono::nanoseconds patience = wire_->patience();
  if (patience.count() == 0) return;
  const comm::CollectiveArgs& args = collective.args_;
  const std::size_t bytes = std::max(args.input.bytes(), args.output.bytes());
  // If the process has groups without a communication thread, this thread must advance those groups in wait_for().
  // Advancing groups without a communication thread may take long and must not delay this group, so this group's
  // communication thread does the group's work.
  if (bytes > kMostDrivenBytes || !comm::ProgressEngine::of_process().has_none()) return token_.request();
  const auto is_done = [&] { return collective.done_.load(std::memory_order_acquire); };
  {
    ProgressToken::Caller caller(token_);
    bool has_news = true;
    for (Deadline look = Deadline::after(patience); !is_done() && !look.expired() && !deadline.expired();) {
      if (!caller.take()) {
        ::sched_yield();
        continue;
      }
      try {
        const Step done = thrown_ ? Step::none_for_caller : has_news ? step(true) : Step::nothing;
        if (done == Step::none_for_caller) break;
        has_news = wire_->poll() || done == Step::something;
        if (has_news) {
          look = Deadline::after(patience);
        } else {
          ::sched_yield();
        }
      } catch (...) {
        // Leave the exception to the communication thread: only run() on that thread fails the group in the right
        // order, and run() needs the token.
        thrown_ = std::current_exception();
      }
    }
    MutexLock lock(mutex_);
    if (!is_done() || !queue_.empty() || p2p_queue_.has_actions()) caller.leave_work();
  }
  wire_->wake();  // the wire's news may be for the communication thread, which sleeps
}

void WireEngine::time_out(const std::string& what, const comm::Stragglers& missing, const Deadline& deadline) {
  propose(Cause::Kind::timeout, missing.only(), comm::timeout_text(what, who(rank_), deadline, missing.text));
  shutdown_.raise();
}

bool WireCollective::poll() {
  if (done_.load(std::memory_order_acquire)) return true;
  if (!engine_->shutdown_.failure().happened()) return false;
  if (done_.load(std::memory_order_acquire)) return true;  // the collective was done before the failure
  engine_->shutdown_.raise();
}

void WireCollective::wait(const Deadline& deadline) {
  engine_->drive(*this, deadline);
  const WireEngine::Outcome outcome =
      engine_->wait_for(deadline, [&] { return done_.load(std::memory_order_acquire); });
  if (outcome == WireEngine::Outcome::failed) engine_->shutdown_.raise();
  if (outcome == WireEngine::Outcome::done) return;
  comm::Stragglers missing;
  {
    MutexLock lock(engine_->mutex_);
    missing = engine_->missing(*this);
  }
  engine_->time_out(describe(), missing, deadline);
}

comm::Stragglers WireEngine::missing(const WireCollective& collective) {
  read_op_headers();
  const auto others = [this](const char* what, const std::vector<int>& ranks) {
    comm::Stragglers result{.text = what};
    for (const int rank : ranks) {
      if (rank != rank_) result.add(rank, who(rank));
    }
    return result;
  };
  // This rank announces at most kAhead collectives after the last collective that all ranks have announced
  // (op_header_table.h). If this rank has not announced `collective` yet, name the ranks that have not announced
  // collective taken + 1.
  const std::uint64_t taken = arrival_table_.taken();
  const bool announced = !op_headers_ || collective.sequence_ <= taken + OpHeaderTable::kAhead;
  std::vector<int> ranks = arrival_table_.absent(announced ? collective.sequence_ : taken + 1);
  const std::vector<int> unheard = op_headers_ ? op_headers_->take_unheard(ranks) : std::vector<int>();
  comm::Stragglers absent = others("not arrived: ", ranks);
  if (!unheard.empty()) absent.text += "; not known, because one of those would report them to this host: ";
  absent.text += joined(unheard, [this](int rank) { return who(rank); });
  if (!absent.ranks.empty()) return absent;
  comm::Stragglers awaited = others("all have arrived; data is still on its way to or from ", wire_->awaited());
  if (awaited.ranks.empty()) {
    // The text doesn't blame the awaited ranks of this host, because the awaited ranks may wait for another host.
    const std::vector<std::size_t> neighbours = pipeline_.awaited_neighbours();
    const auto name = [&](std::size_t local) { return who(hosts_.neighbours()[local]); };
    awaited.text = neighbours.empty()
                       ? "all have arrived, and their data is still on its way"
                       : fmt::format("all have arrived; data is still on its way to or from {} of this host",
                                     joined(neighbours, name));
  }
  if (const auto& last = collective.last_arrival_) {
    awaited.text += fmt::format("; the last to arrive was {}, {:.3f} s after the first", who(last->rank),
                                std::chrono::duration<double>(last->behind).count());
  }
  return awaited;
}

}  // namespace lockstep::wire
