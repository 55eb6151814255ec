// What the ranks tell each other, and how a group ends: in order, or aborted.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/base/exit_code.h"
#include "runtime/base/logging.h"
#include "runtime/base/quiet_thread.h"
#include "runtime/comm/nccl/engine.h"
#include "runtime/comm/wire/patience.h"

namespace lockstep::nccl {

using wire::Cause;

namespace {

// Between two looks at a communicator that is being made.
constexpr std::chrono::milliseconds kMoment{1};

}  // namespace

void Engine::on_entry(const std::string& text) {
  const auto entry = read(text, size_);
  if (!entry) {
    return failure_.propose(Cause::mismatch,
                            fmt::format("{} got '{}' from another rank, which is none of its words; run "
                                        "one version of lockstep on every host",
                                        own_name(), text));
  }
  switch (entry->kind) {
    case EntryKind::question: return answer(*entry);
    case EntryKind::failed: {
      const std::int64_t cause = entry->at(0);
      if (cause < static_cast<std::int64_t>(Cause::peer_lost) || cause > static_cast<std::int64_t>(Cause::mismatch))
        return;
      {
        MutexLock lock(mutex_);
        told_by_another_ = true;
      }
      return failure_.adopt(static_cast<Cause>(cause), entry->text);
    }
    default: break;
  }
  MutexLock lock(mutex_);
  const auto rank = static_cast<std::size_t>(entry->numbers.empty() ? 0 : entry->rank());
  switch (entry->kind) {
    case EntryKind::called: {
      auto& all = arrivals_[static_cast<std::uint64_t>(entry->at(1))];
      all.resize(static_cast<std::size_t>(size_));
      all[rank] = record_of(std::span(entry->numbers).subspan(2));
      break;
    }
    case EntryKind::answer: {
      Position position{static_cast<std::uint64_t>(entry->at(1)), static_cast<std::uint64_t>(entry->at(2)), {}};
      position.record = record_of(std::span(entry->numbers).subspan(3));
      positions_[rank] = position;
      break;
    }
    case EntryKind::left: left_after_[rank] = static_cast<std::uint64_t>(entry->at(1)); break;
    case EntryKind::aborted: somebody_aborted_ = true; break;
    case EntryKind::message: {
      // Every rank makes the communicator for messages, or it comes up nowhere.
      messages_wanted_ = true;
      take_posting({.sender = entry->rank(),
                    .receiver = static_cast<int>(entry->at(1)),
                    .is_send = entry->at(2) != 0,
                    .tag = entry->at(3),
                    .dtype = static_cast<DType>(entry->at(4)),
                    .count = entry->at(5),
                    .number = entry->at(6)});
      break;
    }
    case EntryKind::channel: messages_id_ = entry->text; break;
    default: break;
  }
  changed_.notify_all();
}

// The reader's thread answers, whatever the others of this process are in.
void Engine::answer(const Entry& question) {
  {
    MutexLock lock(mutex_);
    if (answered_) return;  // ranks that time out together ask together, and all read the answers
    answered_ = true;
  }
  Entry entry{EntryKind::answer, {rank_, static_cast<std::int64_t>(last()), question.at(1)}};
  if (const auto record = flight_record_.find(static_cast<std::uint64_t>(question.at(1)))) {
    append(entry.numbers, *record);
  }
  control_.post(write(entry));
}

void Engine::on_cause() {
  bool tell = false;
  {
    MutexLock lock(mutex_);
    changed_.notify_all();
    tell = !told_by_another_;
  }
  if (tell) {
    const auto known = failure_.known();
    control_.post(write({EntryKind::failed, {static_cast<std::int64_t>(known.cause)}, known.text}));
  }
  MutexLock lock(mutex_);
  if (closed_) return;
  try {
    // Whoever closes the group waits for it.
    undertaker_ = start_quiet_thread([this] { undertake(); });
  } catch (const std::exception& error) {
    log_error("nccl: no thread to abort the communicator of {}: {}", own_name(), error.what());
    let_go_ = true;
  }
}

bool Engine::within_patience(const char* what, std::function<void()> body) {
  struct Call {
    Mutex mutex;
    Condition changed;
    bool done GUARDED_BY(mutex) = false;
  };
  const auto call = std::make_shared<Call>();
  std::thread helper = start_quiet_thread([call, body = std::move(body), self = shared_from_this()] {
    ::cudaSetDevice(self->context_.device.index);
    body();
    MutexLock lock(call->mutex);
    call->done = true;
    call->changed.notify_all();
  });
  wire::Patience patience(knobs_.abort_patience);
  bool done = false;
  {
    MutexLock lock(call->mutex);
    while (!call->done && !patience.over()) call->changed.wait_until(call->mutex, patience.next());
    done = call->done;
  }
  if (done) {
    helper.join();
    return true;
  }
  helper.detach();
  end_the_process(what);
  return false;
}

void Engine::end_the_process(const char* what) const {
  log_error("nccl: {} of {} has not returned in {} s", what, own_name(),
            std::chrono::duration<double>(knobs_.abort_patience).count());
  if (failure_.happened()) log_error("nccl: the group had failed: {}", failure_.known().text);
  for (const std::string& line : flight_record_.lines()) log_error("nccl: flight record: {}", line);
  if (!knobs_.watchdog) {
    log_error("nccl: the process goes on, with a device that may never come free (LOCKSTEP_FAILURE_WATCHDOG=off)");
    return;
  }
  log_error("nccl: the process ends with exit code {}; LOCKSTEP_FAILURE_WATCHDOG=off lets it go on", kExitAbortBlocked);
  ::_exit(kExitAbortBlocked);
}

void Engine::undertake() {
  {
    // The owner is in a call at most, and NCCL's return at once.
    MutexLock lock(mutex_);
    wire::Patience patience(kOwnerPatience);
    while (!parked_ && !patience.over()) changed_.wait_until(mutex_, patience.next());
  }
  const auto let_go = [this] {
    // Kernels have left; what is behind them in the stream goes through.
    const Deadline patience = Deadline::after(knobs_.abort_patience);
    try {
      // Beside each other: each may wait for what the other's kernels hold.
      std::thread other = start_quiet_thread([this] {
        ::cudaSetDevice(context_.device.index);
        abort(messages_);
      });
      abort(collectives_);
      other.join();
      for (const Track* track : {&collectives_, &messages_}) {
        if (track->stream) runtime_.synchronize({context_.device, track->stream.get()}, patience);
      }
    } catch (const std::exception& error) {
      log_warn("nccl: after the abort of {}: {}", own_name(), error.what());
    }
  };
  try {
    within_patience("the abort", let_go);
  } catch (const std::exception& error) {
    log_error("nccl: no thread to abort the communicator of {}: {}", own_name(), error.what());
  }
  MutexLock lock(mutex_);
  let_go_ = true;
  changed_.notify_all();
}

void Engine::abort(Track& track) {
  if (!track.communicator || track.communicator->abort()) return;
  log_warn("nccl: the abort of {} reports an error", own_name());
}

bool Engine::wait_for_goodbyes() {
  wire::Patience patience(kFarewell);
  for (;;) {
    // Others may still have messages to each other, for which all make a communicator.
    const bool moved = step_messages();
    const bool waits_for_nccl = is_waiting_for_nccl();
    MutexLock lock(mutex_);
    if (somebody_aborted_ || failure_.happened()) return false;
    bool all = true;
    for (const auto& left : left_after_) all &= left.has_value();
    // Whoever has read all goodbyes has read all messages before them.
    if (all && !waits_for_nccl && !(messages_wanted_ && !messages_.is_up)) return true;
    if (patience.over()) return false;
    if (!moved) changed_.wait_until(mutex_, waits_for_nccl ? Deadline::after(kMoment) : patience.next());
  }
}

// All say that they stop, with their last collective, before the first of them takes its end of the connections away.
void Engine::leave() {
  control_.post(write({EntryKind::left, {rank_, static_cast<std::int64_t>(last())}}));
  const bool all_left = wait_for_goodbyes();
  failure_.check();
  if (all_left) {
    // The last collectives may wait for a long kernel of the program's.
    const Deadline in_flight = Deadline::after(context_.timeout);
    for (const Track* track : {&messages_, &collectives_}) {
      if (track->stream) runtime_.synchronize({context_.device, track->stream.get()}, in_flight);
    }
    retire();
    const Deadline limit = Deadline::after(kFarewell).sooner(context_.timeout);
    std::function<void(const Lane&)> last_wish;
    {
      MutexLock lock(mutex_);
      last_wish.swap(at_the_end_);
    }
    if (last_wish) last_wish(lane(collectives_));
    for (Track* track : {&messages_, &collectives_}) {
      if (!track->communicator) continue;
      track->communicator->finalize();
      settle(*track, limit, "the end of the communicator", "each rank must let its group go");
      within_patience("ncclCommDestroy", [track] { track->communicator->destroy(); });
    }
  } else {
    log_info("nccl: {} has waited {} s for the others to leave, and aborts its communicator", own_name(),
             kFarewell.count());
    control_.post(write({EntryKind::aborted, {rank_}}));
    within_patience("the abort", [this] {
      abort(messages_);
      abort(collectives_);
    });
  }
  world_size_.reset();
  MutexLock lock(mutex_);
  let_go_ = true;
}

}  // namespace lockstep::nccl
