#include "runtime/comm/nccl/engine.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/base/quiet_thread.h"

namespace lockstep::nccl {
namespace {

using wire::Cause;

// How long the owner of a failed group waits for the device to let go of its memory before the cause is thrown. The
// abort goes on meanwhile.
constexpr std::chrono::milliseconds kLetGoPatience{900};
// How long the ranks may take to say where they are.
constexpr std::chrono::milliseconds kAnswerPatience{700};
// Between two looks at the owner thread.
constexpr std::chrono::milliseconds kLook{50};

bool switched(const Environment& environment, const char* name, const char* other_than_default, const char* otherwise) {
  const std::string text = environment.get(name).value_or(otherwise);
  if (text == other_than_default || text == otherwise) return text == other_than_default;
  throw InvalidArgument(fmt::format("environment: {}='{}' is unknown; '{}' or '{}' (the default)", name, text,
                                    other_than_default, otherwise));
}

}  // namespace

Knobs knobs_of(const Environment& environment) {
  Knobs knobs;
  knobs.check_collectives = switched(environment, "LOCKSTEP_CHECK_COLLECTIVES", "1", "0");
  knobs.may_share_gpus = switched(environment, "LOCKSTEP_OVERSUBSCRIBE_GPU", "1", "0");
  if (const auto text = environment.get("LOCKSTEP_FAILURE_WATCHDOG"); text && !text->empty()) {
    const auto seconds = parse_int(*text);
    knobs.watchdog = *text != "off";
    if (knobs.watchdog && (!seconds || *seconds < 1 || *seconds > 3600)) {
      throw InvalidArgument(fmt::format(
          "environment: LOCKSTEP_FAILURE_WATCHDOG='{}'; give the seconds after which a process whose GPU can't be "
          "aborted is ended, 1 to 3600 (5 is the default), or 'off'",
          *text));
    }
    if (knobs.watchdog) knobs.abort_patience = std::chrono::seconds(*seconds);
  }
  if (const auto text = environment.get("LOCKSTEP_NCCL_MAX_CTAS"); text && !text->empty()) {
    const auto value = parse_int(*text);
    if (!value || *value < 1 || *value > 64) {
      throw InvalidArgument(fmt::format(
          "environment: LOCKSTEP_NCCL_MAX_CTAS='{}'; give the most multiprocessors that a collective may take, 1 to 64",
          *text));
    }
    knobs.max_ctas = static_cast<int>(*value);
  }
  knobs.one_queue = environment.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1";
  return knobs;
}

Engine::Engine(const Api& api, DeviceRuntime& runtime, GroupContext context, Knobs knobs)
    : api_(api),
      runtime_(runtime),
      context_(std::move(context)),
      knobs_(knobs),
      rank_(context_.identity.rank),
      size_(static_cast<int>(context_.roster.size())),
      patient_store_(context_.store),
      failure_(patient_store_, [this] { on_cause(); }),
      control_(context_.store, size_),
      positions_(context_.roster.size()),
      left_after_(context_.roster.size()) {}

Engine::~Engine() = default;

void Engine::open(const Deadline& deadline) {
  control_.start([this](const std::string& entry) { on_entry(entry); });
  {
    MutexLock lock(mutex_);
    parked_ = false;
  }
  owner_ = start_quiet_thread([self = shared_from_this(), deadline] { self->run(deadline); });
  std::exception_ptr error;
  std::optional<wire::Patience> overdue;
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
    failure_.propose(Cause::timeout, text);
    join_undertaker();
    control_.stop();
    throw Timeout(text);
  }
  close();
  std::rethrow_exception(error);
}

void Engine::check() const {
  if (failure_.happened()) throw_failure();
  MutexLock lock(mutex_);
  if (closed_) {
    throw InvalidArgument(
        fmt::format("{}: the group was destroyed before this work was done; wait for each work, or keep the group for "
                    "longer",
                    own_name()));
  }
}

bool Engine::all_have_answered() const {
  for (int r = 0; r < size_; ++r) {
    const auto index = static_cast<std::size_t>(r);
    if (r != rank_ && !positions_[index] && !left_after_[index]) return false;
  }
  return true;
}

std::shared_ptr<WorkState> Engine::start(comm::Task task, StreamView compute) {
  check();
  const bool on_device = task.record.kind == comm::OpKind::barrier || task.output.device.kind != DeviceKind::cpu ||
                         task.input.device.kind != DeviceKind::cpu;
  auto collective = std::make_shared<Collective>(std::move(task));
  collective->prepare(memory_lane(collectives_));
  if (on_device) {
    collective->ready = take_event();
    runtime_.record(collective->ready.get(), compute);
  }
  {
    MutexLock lock(mutex_);
    collective->sequence = ++last_;
    flight_record_.called(collective->sequence, collective->task.record);
    queue_.push_back(collective);
    notify();
  }
  if (knobs_.check_collectives) {
    Entry entry{EntryKind::called, {rank_, static_cast<std::int64_t>(collective->sequence)}};
    append(entry.numbers, collective->task.record);
    control_.post(write(entry));
  }
  return std::make_shared<Ticket<Collective>>(shared_from_this(), std::move(collective));
}

std::shared_ptr<WorkState> Engine::start(std::shared_ptr<Message> message, StreamView compute) {
  check();
  message->prepare(memory_lane(messages_));
  if (message->buffer.device.kind != DeviceKind::cpu) {
    message->ready = take_event();
    runtime_.record(message->ready.get(), compute);
  }
  Posting posting;
  posting.sender = message->is_send ? rank_ : message->peer;
  posting.receiver = message->is_send ? message->peer : rank_;
  posting.is_send = message->is_send;
  posting.tag = message->tag;
  posting.dtype = message->buffer.dtype;
  posting.count = message->buffer.count;
  {
    MutexLock lock(mutex_);
    posting.number = message->number = ++last_message_;
    posted_[posting.number] = message;
    if (message->peer == rank_) take_posting(posting);
    notify();
  }
  if (message->peer != rank_) {
    control_.post(write({EntryKind::message,
                         {posting.sender, posting.receiver, posting.is_send ? 1 : 0, posting.tag,
                          static_cast<std::int64_t>(posting.dtype), posting.count, posting.number}}));
  }
  return std::make_shared<Ticket<Message>>(shared_from_this(), std::move(message));
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
    failure_.propose(
        Cause::timeout,
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
  {
    MutexLock lock(retire_mutex_);
    for (Track* track : {&collectives_, &messages_}) {
      auto& in_flight = track->in_flight;
      while (!in_flight.empty()) {
        const std::shared_ptr<Item> front = in_flight.front();
        if (!runtime_.reached(front->finished.get())) break;
        // An aborted kernel ends too. Before the failure nothing is aborted.
        if (failure_.happened()) break;
        front->land();
        if (front->sequence != 0) flight_record_.done(front->sequence);
        for (Item* item : {front.get(), front->twin.get()}) {
          if (item != nullptr) item->done.store(true, std::memory_order_release);
        }
        in_flight.pop_front();
        any = true;
      }
    }
  }
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
  MutexLock lock(retire_mutex_);  // an event is used by one thread at a time
  runtime_.block(stream, item.finished.get());
}

void Engine::throw_failure() const {
  const Deadline patience = Deadline::after(kLetGoPatience);
  {
    MutexLock lock(mutex_);
    while (!let_go_ && !device_is_stuck() && changed_.wait_until(mutex_, patience)) {
    }
  }
  failure_.raise();
}

wire::Failure::Known Engine::what_holds_up(const Item& item, const Deadline& deadline) {
  if (item.awaited_peer() >= 0) {
    const bool has_counterpart = item.launched.load(std::memory_order_acquire);
    return {Cause::timeout, fmt::format("{} on {} timed out, {}; {} {}; see why it is late, or raise the timeout",
                                        item.describe(), own_name(), deadline.progress(), who(item.awaited_peer()),
                                        has_counterpart ? "has called its part, and the devices are not through with it"
                                                        : "has not called its part")};
  }
  const auto sequence = static_cast<std::int64_t>(item.sequence);
  control_.post(write({EntryKind::question, {rank_, sequence}}));
  std::vector<std::optional<Position>> positions;
  std::vector<std::optional<std::uint64_t>> left;
  {
    MutexLock lock(mutex_);
    wire::Patience patience(kAnswerPatience);
    while (!failure_.happened() && !all_have_answered() && !patience.over()) {
      changed_.wait_until(mutex_, patience.next());
    }
    positions = positions_;
    left = left_after_;
  }
  std::string absent;
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    const auto& position = positions[static_cast<std::size_t>(r)];
    const char* const comma = absent.empty() ? "" : ", ";
    if (left[static_cast<std::size_t>(r)]) {
      absent += fmt::format("{}{}, which left", comma, who(r));
    } else if (!position) {
      absent += fmt::format("{}{}, which does not answer", comma, who(r));
    } else if (position->last < item.sequence) {
      absent += fmt::format("{}{}, which started {} last", comma, who(r),
                            position->last == 0 ? "nothing" : fmt::format("collective {}", position->last));
    } else if (const auto own = flight_record_.find(item.sequence); own && position->record &&
                                                                    position->asked == item.sequence &&
                                                                    !comm::same_operation(*own, *position->record)) {
      return {Cause::mismatch, comm::describe_mismatch(item.sequence, own_name(), *own, who(r), *position->record)};
    }
  }
  const std::string why =
      absent.empty() ? "all have arrived, and the devices are not through with it" : "not arrived: " + absent;
  return {Cause::timeout, fmt::format("{} on {} timed out, {}; {}; see why it is late, or raise the timeout",
                                      item.describe(), own_name(), deadline.progress(), why)};
}

void Engine::time_out(const Item& item, const Deadline& deadline) {
  const auto known = what_holds_up(item, deadline);
  failure_.propose(known.cause, known.text);
  throw_failure();
}

std::shared_ptr<Message> Engine::take_posted(std::int64_t number) {
  const auto found = posted_.find(number);
  if (found == posted_.end()) return nullptr;
  auto message = std::move(found->second);
  posted_.erase(found);
  return message;
}

// A pair that has this rank's side is launched here in its turn; the other side's rank finds it at the same place.
void Engine::take_posting(const Posting& posting) {
  if (posting.sender != rank_ && posting.receiver != rank_) return;
  const auto pair = matches_.add(posting);
  if (!pair) return;
  const Posting& sent = pair->send;
  const Posting& wanted = pair->recv;
  std::shared_ptr<Message> recv = wanted.receiver == rank_ ? take_posted(wanted.number) : nullptr;
  std::shared_ptr<Message> send = sent.sender == rank_ ? take_posted(sent.number) : nullptr;
  if (!pair->fits()) {
    mismatch_ = fmt::format(
        "{} called recv of {} x {} from rank {} with tag {}, but {} sent {} x {}; both sides must "
        "give one size and type",
        who(wanted.receiver), wanted.count, name_of(wanted.dtype), wanted.sender, wanted.tag, who(sent.sender),
        sent.count, name_of(sent.dtype));
    return;
  }
  if (recv) {
    recv->twin = send;
    matched_.push_back(std::move(recv));
  } else if (send) {
    matched_.push_back(std::move(send));
  }
}

std::string Engine::where_this_rank_was() const {
  std::shared_ptr<Collective> in = current_ && !current_->done.load(std::memory_order_acquire) ? current_ : nullptr;
  if (!in && !queue_.empty()) in = queue_.front();
  return fmt::format("{} was in {}", own_name(), in ? in->describe() : "no collective");
}

void Engine::lose(int rank, const std::string& how) {
  std::string where;
  {
    MutexLock lock(mutex_);
    if (closed_ || left_after_[static_cast<std::size_t>(rank)]) return;
    where = where_this_rank_was();
  }
  failure_.propose(Cause::peer_lost, fmt::format("{}; {}", how, where));
}

Engine::UnderWay Engine::under_way() {
  UnderWay result;
  {
    MutexLock lock(retire_mutex_);
    // They end in their order: what is waited for covers what came before it.
    const auto count = [](const Track& track) {
      const auto last = std::find_if(track.in_flight.rbegin(), track.in_flight.rend(),
                                     [](const auto& item) { return item->handed_on.load(std::memory_order_relaxed); });
      return static_cast<std::size_t>(last - track.in_flight.rbegin());
    };
    result = {count(collectives_), count(messages_)};
  }
  MutexLock lock(mutex_);
  result.collectives += queue_.size();
  if (current_ && !current_->launched.load(std::memory_order_acquire)) ++result.collectives;
  result.messages += matched_.size() + posted_.size();
  return result;
}

// It makes no call that waits. Should one do so all the same, an abort gets it out, or the watchdog ends the process.
void Engine::join_owner() {
  if (!owner_.joinable()) return;
  std::optional<wire::Patience> patience;
  bool parked = false;
  {
    MutexLock lock(mutex_);
    while (!parked_ && !(patience && patience->over())) {
      changed_.wait_until(mutex_, Deadline::after(kLook));
      if (!patience && failure_.happened()) patience.emplace(kOwnerPatience + 2 * knobs_.abort_patience);
    }
    parked = parked_;
  }
  if (parked) return owner_.join();
  log_error("nccl: a call of NCCL has not come back on {}, and its thread is left behind", own_name());
  owner_.detach();
}

void Engine::join_undertaker() {
  std::thread undertaker;
  {
    MutexLock lock(mutex_);
    undertaker.swap(undertaker_);
  }
  if (undertaker.joinable()) undertaker.join();
}

void Engine::close_as(std::optional<std::string> cause) {
  {
    MutexLock lock(mutex_);
    if (closed_) return;
  }
  if (!failure_.happened()) retire();
  if (!cause && !failure_.happened()) {
    if (const UnderWay left = under_way(); left.collectives + left.messages > 0) {
      cause = fmt::format(
          "{} destroyed its group with {} collectives and {} messages under way; it must wait for each work first",
          own_name(), left.collectives, left.messages);
    }
  }
  if (cause) failure_.propose(Cause::peer_lost, *cause);
  {
    MutexLock lock(mutex_);
    closing_ = true;
    notify();
  }
  join_owner();
  {
    MutexLock lock(mutex_);
    // Whoever brings a cause makes it known first, and calls the undertaker then.
    wire::Patience patience(knobs_.abort_patience);
    while (failure_.happened() && !undertaker_called_ && !patience.over()) {
      changed_.wait_until(mutex_, patience.next());
    }
    closed_ = true;  // no undertaker comes after this
    notify();
  }
  join_undertaker();
  control_.stop();
  MutexLock retire_lock(retire_mutex_);
  MutexLock lock(mutex_);
  for (Track* track : {&collectives_, &messages_}) {
    track->launching.reset();
    track->in_flight.clear();
  }
  queue_.clear();
  matched_.clear();
  posted_.clear();
  errands_.clear();
  current_.reset();
  at_the_end_ = nullptr;
}

void Engine::close() { close_as({}); }

void Engine::close_unwinding() {
  close_as(fmt::format("{} was ended by an exception of its own after collective {}; its own message says more",
                       own_name(), last()));
}

}  // namespace lockstep::nccl
