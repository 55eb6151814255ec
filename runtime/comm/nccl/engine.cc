// The program's thread: it starts collectives, and waits for them.
#include "runtime/comm/nccl/engine.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/base/quiet_thread.h"
#include "runtime/comm/failure/messages.h"
#include "runtime/comm/roster_cause.h"

namespace lockstep::nccl {
namespace {

// How long the owner of a failed group waits for the device to let go of its memory before the cause is thrown. The
// abort goes on meanwhile.
constexpr std::chrono::milliseconds kLetGoPatience{900};
// Between two looks at the owner thread.
constexpr std::chrono::milliseconds kLook{50};

}  // namespace

Engine::Engine(const Api& api, DeviceRuntime& runtime, GroupContext context, Knobs knobs)
    : api_(api),
      runtime_(runtime),
      context_(std::move(context)),
      knobs_(knobs),
      rank_(context_.identity.rank),
      size_(static_cast<int>(context_.roster.size())),
      patient_store_(context_.store),
      failure_(
          patient_store_, rank_, [this] { on_cause(); }, context_.on_throw),
      positions_(context_.roster.size()),
      left_after_(context_.roster.size()),
      control_(context_.store, size_) {}

Engine::~Engine() = default;

void Engine::open(const Deadline& deadline) {
  try {
    control_.start([this](const std::string& entry) { on_entry(entry); });
    {
      MutexLock lock(mutex_);
      parked_ = false;
    }
    owner_ = start_quiet_thread([self = shared_from_this(), deadline] { self->run(deadline); });
  } catch (const std::exception&) {
    {
      MutexLock lock(mutex_);
      parked_ = true;
      closed_ = true;  // no undertaker comes after this
    }
    control_.stop();
    join_undertaker();
    throw;
  }
  std::exception_ptr error;
  std::optional<comm::Patience> overdue;
  bool is_late = false;
  {
    MutexLock lock(mutex_);
    while (!open_ && !open_error_ && !is_late) {
      changed_.wait_until(mutex_, Deadline::after(kLook));
      // It says itself what holds it up, unless it can't.
      if (!overdue && deadline.expired()) overdue.emplace(knobs_.abort_patience);
      is_late = overdue && overdue->over();
    }
    if (open_) return;
    error = open_error_;
    closed_ = error == nullptr;
    owner_undertakes_ = closed_;  // when its call comes back
  }
  if (!error) {
    owner_.detach();
    const std::string text = fmt::format(
        "nccl: a call of NCCL or of the GPU's driver has not come back on {}, {}; see whether nvidia-smi answers, and "
        "what NCCL_DEBUG=INFO says",
        own_name(), deadline.progress());
    propose(Cause::Kind::timeout, rank_, text);
    join_undertaker();
    control_.stop();
    throw Timeout(text);
  }
  close_as({});
  std::rethrow_exception(error);
}

void Engine::check() const {
  if (failure_.happened()) throw_failure();
  MutexLock lock(mutex_);
  if (closed_) comm::throw_closed(own_name());
}

void Engine::prepare(Item& item, bool follows, StreamView compute) {
  check();
  item.prepare({.runtime = runtime_, .stream = {context_.device, stream_.get()}, .rank = rank_, .size = size_});
  if (!follows) return;
  item.ready = runtime_.create_event(context_.device, false);
  runtime_.record(item.ready.get(), compute);
}

void Engine::queue(std::shared_ptr<Item> item) {
  queue_.push_back(std::move(item));
  notify();
}

std::shared_ptr<WorkState> Engine::start(comm::Task task, StreamView compute) {
  const bool on_device = task.record.kind == comm::OpKind::barrier || task.output.device.kind != DeviceKind::cpu ||
                         task.input.device.kind != DeviceKind::cpu;
  auto collective = std::make_shared<Collective>(std::move(task));
  prepare(*collective, on_device, compute);
  {
    MutexLock lock(mutex_);
    collective->sequence = ++last_;
    flight_record_.called(collective->sequence, collective->task.record);
    queue(collective);
  }
  if (knobs_.check_collectives) {
    Entry entry{EntryKind::called, {rank_, static_cast<std::int64_t>(collective->sequence)}};
    append(entry.numbers, collective->task.record);
    control_.post(write(entry));
  }
  return std::make_shared<Ticket>(shared_from_this(), std::move(collective));
}

std::shared_ptr<WorkState> Engine::start(std::shared_ptr<Message> message, StreamView compute) {
  prepare(*message, message->buffer.device.kind != DeviceKind::cpu, compute);
  {
    MutexLock lock(mutex_);
    MessageCounts& counts = messages_[message->peer];
    message->number = ++(message->is_send ? counts.sent : counts.received);
    queue(message);
  }
  return std::make_shared<Ticket>(shared_from_this(), std::move(message));
}

void Engine::on_owner_thread(const char* what, std::function<void(const Lane&)> body) {
  check();
  const Deadline deadline = Deadline::after(context_.timeout);
  const auto errand = std::make_shared<Errand>();
  errand->body = std::move(body);
  bool parked = false;
  {
    MutexLock lock(mutex_);
    errands_.push_back(errand);
    notify();
    while (!errand->done && !parked_ && changed_.wait_until(mutex_, deadline)) {
    }
    if (errand->done) {
      if (errand->error) std::rethrow_exception(errand->error);
      return;
    }
    parked = parked_;
  }
  if (!parked) {
    propose(Cause::Kind::timeout, rank_,
            fmt::format("nccl: {} on {} is not done, {}; the thread that calls NCCL has not come to it, or a call of "
                        "NCCL or of the GPU's driver has not come back; see whether nvidia-smi answers, and what "
                        "NCCL_DEBUG=INFO says",
                        what, own_name(), deadline.progress()));
  }
  throw_failure();
}

void Engine::at_the_end(std::function<void(const Lane&)> body) {
  MutexLock lock(mutex_);
  at_the_end_ = std::move(body);
}

void Engine::retire() {
  bool any = false;
  std::optional<std::string> problem;
  {
    MutexLock lock(retire_mutex_);
    while (!problem && !in_flight_.empty()) {
      const std::shared_ptr<Item> front = in_flight_.front();
      if (!runtime_.reached(front->finished.get())) break;
      // An aborted kernel ends too. Before the failure nothing is aborted.
      if (failure_.happened()) break;
      front->land();
      in_flight_.pop_front();
      problem = front->problem();
      if (problem) break;
      if (front->sequence != 0) flight_record_.done(front->sequence);
      front->done.store(true, std::memory_order_release);
      any = true;
    }
  }
  // It is never done, and whoever waits for it has the failure.
  if (problem) propose(Cause::Kind::mismatch, -1, *problem);
  if (!any) return;
  MutexLock lock(mutex_);
  notify();
}

bool Engine::poll(Item& item) {
  if (item.done.load(std::memory_order_acquire)) return true;
  if (item.launched.load(std::memory_order_acquire)) retire();
  if (item.done.load(std::memory_order_acquire)) return true;
  check();
  return false;
}

void Engine::wait_for(Item& item, const Deadline& deadline) {
  constexpr int kSpins = 100;
  constexpr std::chrono::nanoseconds kLongest = std::chrono::milliseconds(1);
  std::chrono::nanoseconds pause_for = std::chrono::microseconds(20);
  for (int looks = 0; !poll(item); ++looks) {
    if (deadline.expired()) time_out(item, deadline);
    if (item.launched.load(std::memory_order_acquire)) {
      // There is no call that waits for an event and knows a deadline.
      if (looks < kSpins) {
        std::this_thread::yield();
        continue;
      }
      MutexLock lock(mutex_);
      changed_.wait_until(mutex_, deadline.sooner(pause_for));
      pause_for = std::min(kLongest, pause_for * 2);
      continue;
    }
    MutexLock lock(mutex_);
    while (!item.launched.load(std::memory_order_acquire) && !failure_.happened() && !closed_ &&
           changed_.wait_until(mutex_, deadline)) {
    }
  }
}

void Engine::wait_on(Item& item, StreamView stream, const Deadline& deadline) {
  if (stream.device != context_.device) {
    // Host code comes behind it, so the host waits.
    if (stream.device.kind == DeviceKind::cpu) return wait_for(item, deadline);
    throw InvalidArgument(fmt::format("wait_on on {}: a stream of {}, but the group computes on {}", own_name(),
                                      stream.device.str(), context_.device.str()));
  }
  runtime_.check_not_captured("wait_on", stream);
  // The host writes the result: no stream can wait for that.
  if (item.is_for_host()) return wait_for(item, deadline);
  for (;;) {
    check();
    if (item.launched.load(std::memory_order_acquire)) break;
    if (deadline.expired()) time_out(item, deadline);
    MutexLock lock(mutex_);
    while (!item.launched.load(std::memory_order_acquire) && !failure_.happened() && !closed_ &&
           changed_.wait_until(mutex_, deadline)) {
    }
  }
  item.handed_on.store(true, std::memory_order_relaxed);
  // Under no lock: where the stream's queue is full this waits for the device, and the owner thread must go on. It may
  // ask for the same event meanwhile, which CUDA allows.
  runtime_.block(stream, item.finished.get());
}

void Engine::throw_failure() const {
  const Deadline patience = Deadline::after(kLetGoPatience);
  {
    MutexLock lock(mutex_);
    while (!let_go_ && !device_is_stuck() && changed_.wait_until(mutex_, patience)) {
    }
  }
  thrown_.store(true, std::memory_order_relaxed);
  failure_.raise();
}

std::string Engine::where_this_rank_was() const {
  std::shared_ptr<Item> in = current_ && !current_->done.load(std::memory_order_acquire) ? current_ : nullptr;
  if (!in && !queue_.empty()) in = queue_.front();
  return fmt::format("{} was in {}", own_name(), in ? in->describe() : "no collective");
}

Cause Engine::cause_of(Cause::Kind kind, int rank, std::string text) const {
  return comm::cause_about(context_.roster, kind, rank, rank_, std::move(text), static_cast<std::int64_t>(last()));
}

void Engine::lose(Cause cause) {
  std::string where;
  {
    MutexLock lock(mutex_);
    if (closed_ || (cause.rank >= 0 && left_after_[static_cast<std::size_t>(cause.rank)])) return;
    where = where_this_rank_was();
  }
  cause.text += "; " + where;
  failure_.propose(cause);
}

Engine::UnderWay Engine::under_way() {
  UnderWay result;
  const auto count = [&](const Item& item) { ++(item.sequence != 0 ? result.collectives : result.messages); };
  {
    MutexLock lock(retire_mutex_);
    // They end in their order: what is waited for covers what came before it.
    for (auto item = in_flight_.rbegin(); item != in_flight_.rend(); ++item) {
      if ((*item)->handed_on.load(std::memory_order_relaxed)) break;
      count(**item);
    }
  }
  MutexLock lock(mutex_);
  if (current_ && !current_->launched.load(std::memory_order_acquire)) count(*current_);
  for (const auto& item : queue_) count(*item);
  return result;
}

}  // namespace lockstep::nccl
