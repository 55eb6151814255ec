#include "runtime/comm/wire/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "runtime/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/base/quiet_thread.h"

namespace lockstep::wire {
namespace {

// How long a rank that leaves, or has failed, stays for the others to hear of it.
constexpr std::chrono::seconds kFarewell{2};
// While a library that knows no deadline connects: between two looks at what has become of the others; and how far past
// the deadline the library's own message, which says more, may come.
constexpr std::chrono::milliseconds kLook{250};
constexpr std::chrono::seconds kOverdue{1};

// What a rank gives to a collective, if it fits into a frame: what is there on every rank, so that all see it alike.
bool fits_inline(const comm::Task& task) {
  return task.count() * task.element_bytes() * comm::source_parts(task.record.kind, task.size) <= kInlineBytes;
}

}  // namespace

// A send or recv, as its Work sees it.
class Message final : public WorkState {
 public:
  Message(std::shared_ptr<Engine> engine, std::shared_ptr<Parcel> parcel)
      : engine_(std::move(engine)), parcel_(std::move(parcel)) {}

  bool poll() override {
    MutexLock lock(engine_->mutex_);
    if (parcel_->done) return true;
    if (engine_->failure_.happened()) engine_->throw_failure();
    return false;
  }
  void wait(const Deadline& deadline) override {
    std::string progress;
    {
      MutexLock lock(engine_->mutex_);
      if (engine_->wait_for(deadline, [&] { return parcel_->done; })) return;
      progress = engine_->post_office_.progress_of(*parcel_);
    }
    engine_->time_out(parcel_->describe(), progress, deadline);
  }

 private:
  std::shared_ptr<Engine> engine_;
  std::shared_ptr<Parcel> parcel_;
};

std::function<void()> start_own_thread(std::function<void()> body) {
  auto thread = std::make_shared<std::thread>(start_quiet_thread(std::move(body)));
  return [thread] { thread->join(); };
}

Engine::Engine(std::unique_ptr<Wire> wire, rendezvous::Roster roster, int rank, std::shared_ptr<store::Store> store)
    : roster_(std::move(roster)),
      rank_(rank),
      size_(static_cast<int>(roster_.size())),
      wire_(std::move(wire)),
      failure_(std::move(store),
               [this] {
                 wire_->interrupt();
                 MutexLock lock(mutex_);
                 changed_.notify_all();
               }),
      post_office_(roster_, rank),
      heard_(roster_.size()),
      left_after_(roster_.size()),
      seen_(roster_.size()) {
  seen_[static_cast<std::size_t>(rank_)] = true;
}

Engine::~Engine() = default;

void Engine::open(const ThreadMaker& make_thread, const Deadline& deadline, const std::function<void()>& check) {
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
  const bool knows_no_deadline = !wire_->opening().empty();
  try {
    while (!is_over(knows_no_deadline ? deadline.sooner(kLook) : Deadline::never())) {
      if (check) check();
      if (!deadline.expired() || is_over(Deadline::after(kOverdue))) continue;
      throw Timeout(
          fmt::format("{}: {} waits for {}, {}; see that every rank runs and has come so far, or raise the "
                      "timeout",
                      wire_->name(), who(rank_), wire_->opening(), deadline.progress()));
    }
  } catch (const Error& error) {
    failure_.abandon(error.what());
    MutexLock lock(mutex_);
    closed_ = true;
    throw;
  }
  std::exception_ptr error;
  {
    MutexLock lock(start->mutex);
    error = start->error;
  }
  if (!error) return;
  join_();
  {
    MutexLock lock(mutex_);
    closed_ = true;
  }
  std::rethrow_exception(error);
}

void Engine::check() const {
  MutexLock lock(mutex_);
  if (failure_.happened()) throw_failure();
  if (closed_) {
    throw InvalidArgument(
        fmt::format("{}: the group was destroyed before this work was done; wait for each work, or keep the group for "
                    "longer",
                    who(rank_)));
  }
}

std::shared_ptr<Collective> Engine::start(comm::Task task) {
  check();
  std::shared_ptr<Collective> collective;
  {
    MutexLock lock(mutex_);
    collective = std::make_shared<Collective>(shared_from_this(), std::move(task), ++last_);
    queue_.push_back(collective);
  }
  wire_->wake();
  return collective;
}

std::shared_ptr<WorkState> Engine::start(Parcel parcel) {
  check();
  std::shared_ptr<Parcel> started;
  {
    MutexLock lock(mutex_);
    started = post_office_.start(std::move(parcel));
  }
  wire_->wake();
  return std::make_shared<Message>(shared_from_this(), std::move(started));
}

template <typename Done>
bool Engine::wait_for(const Deadline& deadline, Done done) {
  while (!done()) {
    if (failure_.happened()) throw_failure();
    if (!changed_.wait_until(mutex_, deadline) && !done()) {
      if (failure_.happened()) throw_failure();
      return false;
    }
  }
  return true;
}

void Engine::time_out(const std::string& what, const std::string& missing, const Deadline& deadline) {
  failure_.propose(Cause::timeout, fmt::format("{} on {} timed out, {}; {}; see why it is late, or raise the timeout",
                                               what, who(rank_), deadline.progress(), missing));
  MutexLock lock(mutex_);
  throw_failure();
}

void Engine::throw_failure() const {
  const Deadline patience = Deadline::after(kFarewell);
  while (!let_go_ && changed_.wait_until(mutex_, patience)) {
  }
  failure_.raise();
}

bool Collective::poll() {
  if (done_.load(std::memory_order_acquire)) return true;
  if (!engine_->failure_.happened()) return false;
  MutexLock lock(engine_->mutex_);
  if (done_.load(std::memory_order_acquire)) return true;
  engine_->throw_failure();
}

void Collective::wait(const Deadline& deadline) {
  std::string missing;
  {
    MutexLock lock(engine_->mutex_);
    if (engine_->wait_for(deadline, [&] { return done_.load(std::memory_order_acquire); })) return;
    missing = engine_->missing(*this);
  }
  engine_->time_out(describe(), missing, deadline);
}

std::string Engine::missing(const Collective& collective) const {
  std::string absent;
  const std::size_t index = collective.sequence_ - done_ - 1;
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    if (index < arrivals_.size() && arrivals_[index][static_cast<std::size_t>(r)]) continue;
    absent += (absent.empty() ? "" : ", ") + who(r);
  }
  if (!absent.empty()) return "not arrived: " + absent;
  for (const int peer : wire_->awaited()) absent += (absent.empty() ? "" : ", ") + who(peer);
  if (absent.empty()) return "all have arrived, and their data is still on its way";
  return "all have arrived; data is still on its way to or from " + absent;
}

Engine::Arrivals& Engine::arrivals_of(std::uint64_t sequence) {
  while (arrivals_.size() < sequence - done_) arrivals_.emplace_back(static_cast<std::size_t>(size_));
  return arrivals_[sequence - done_ - 1];
}

void Engine::on_frame(int peer, std::span<const std::byte> bytes) {
  const auto frame = read_frame(bytes);
  if (!frame) {
    return failure_.propose(
        Cause::mismatch,
        fmt::format("{} got {} bytes over {} from {} that are no frame of this version; run one version "
                    "of lockstep on every host",
                    who(rank_), bytes.size(), wire_->name(), who(peer)));
  }
  if (frame->kind == FrameKind::failed) {
    return failure_.adopt(static_cast<Cause>(frame->number), std::string(text_of(frame->payload)));
  }
  std::uint64_t expected = 0;
  {
    MutexLock lock(mutex_);
    expected = heard_[static_cast<std::size_t>(peer)] + 1;
  }
  if (frame->kind == FrameKind::collective && frame->number != expected) {
    return failure_.propose(Cause::mismatch,
                            fmt::format("{} got word of collective {} over {} from {}, and collective "
                                        "{} is next; run one version of lockstep on every host",
                                        who(rank_), frame->number, wire_->name(), who(peer), expected));
  }
  MutexLock lock(mutex_);
  const auto index = static_cast<std::size_t>(peer);
  switch (frame->kind) {
    case FrameKind::collective:
      heard_[index] = frame->number;
      arrivals_of(frame->number)[index] = {frame->record, {frame->payload.begin(), frame->payload.end()}};
      break;
    case FrameKind::goodbye:
      left_after_[index] = frame->number;
      to_acknowledge_.push_back(peer);
      break;
    case FrameKind::seen: seen_[index] = true; break;
    default: post_office_.on_frame(peer, *frame);
  }
  changed_.notify_all();
}

std::string Engine::where_this_rank_was() const {
  return fmt::format("{} was in {}", who(rank_), queue_.empty() ? "no collective" : queue_.front()->describe());
}

void Engine::on_lost(int peer, const std::string& how) {
  std::string where;
  {
    MutexLock lock(mutex_);
    const auto index = static_cast<std::size_t>(peer);
    seen_[index] = true;
    if (left_after_[index] || closed_) return;
    where = where_this_rank_was();
  }
  failure_.propose(Cause::peer_lost,
                   fmt::format("{} has died: its process ended, by a signal or an exit, without closing its group, or "
                               "its host can't be reached; {} ({}: {})",
                               who(peer), where, wire_->name(), how));
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

void Engine::on_broken(const std::string& how) {
  failure_.propose(Cause::peer_lost, fmt::format("{} can't go on: {}: {}", who(rank_), wire_->name(), how));
}

void Engine::run() {
  try {
    while (step()) {
    }
  } catch (const Broken& broken) {
    wait_for_a_cause(broken.what());
  } catch (const std::exception& error) {
    on_broken(error.what());  // unless it is the cause
  }
  const auto now_it_has_let_go = [this] {
    MutexLock lock(mutex_);
    let_go_ = true;
    changed_.notify_all();
  };
  try {
    if (failure_.happened()) {
      wire_->let_go();
      now_it_has_let_go();
      tell_of_failure();
    }
    wire_->close(Deadline::after(kFarewell));
  } catch (const std::exception& error) {
    on_broken(error.what());
  }
  now_it_has_let_go();
}

void Engine::wait_for_a_cause(const std::string& how) {
  const Deadline patience = Deadline::after(kFarewell);
  try {
    while (!failure_.happened() && !patience.expired()) wire_->wait(patience);
  } catch (const std::exception& error) {
    log_debug("{} can't wait any more: {}", wire_->name(), error.what());  // so nobody can say more
  }
  failure_.propose(Cause::peer_lost, fmt::format("{} lost a connection: {}: {}", who(rank_), wire_->name(), how));
}

bool Engine::step() {
  if (failure_.happened()) return false;
  std::vector<std::shared_ptr<Collective>> fresh;
  std::deque<Errand> errands;
  std::optional<std::string> mismatch;
  bool leaving = false;
  {
    MutexLock lock(mutex_);
    for (const auto& collective : queue_) {
      if (collective->sequence_ > announced_) fresh.push_back(collective);
    }
    announced_ = last_;
    errands = post_office_.take_errands();
    mismatch = post_office_.mismatch();
    leaving = closing_ && queue_.empty() && errands.empty();
  }
  if (mismatch) failure_.fail(Cause::mismatch, *mismatch);
  for (const auto& collective : fresh) announce(*collective);
  for (const Errand& errand : errands) {
    if (!PostOffice::run(errand, *wire_)) continue;
    MutexLock lock(mutex_);
    post_office_.finish(*errand.parcel);
    changed_.notify_all();
  }
  acknowledge();
  if (run_collectives() || !errands.empty()) return true;
  check_those_who_left();
  if (leaving) {
    say_goodbye();
    return false;
  }
  wire_->wait(Deadline::never());
  return true;
}

void Engine::announce(Collective& collective) {
  const comm::Task& task = collective.task_;
  std::vector<std::byte> payload;
  if (fits_inline(task) && comm::is_source(task.record, rank_)) {
    const std::size_t stride = task.count() * task.element_bytes();
    payload.resize(stride * comm::source_parts(task.record.kind, size_));
    comm::stage(task, {0, task.count()}, payload.data(), stride);
  }
  Frame frame;
  frame.number = collective.sequence_;
  frame.record = task.record;
  frame.payload = payload;
  const FrameBytes bytes = write_frame(frame);
  for (int i = 1; i < size_; ++i) wire_->send_frame((rank_ + i) % size_, bytes);
  MutexLock lock(mutex_);
  arrivals_of(collective.sequence_)[static_cast<std::size_t>(rank_)] = {task.record, std::move(payload)};
}

bool Engine::run_collectives() {
  bool any = false;
  for (;;) {
    std::shared_ptr<Collective> next;
    Arrivals arrivals;
    {
      MutexLock lock(mutex_);
      if (queue_.empty() || arrivals_.empty()) return any;
      const Arrivals& front = arrivals_.front();
      if (!std::all_of(front.begin(), front.end(), [](const auto& arrival) { return arrival.has_value(); })) return any;
      next = queue_.front();
      arrivals = front;  // stays there until it is done, for who asks what is missing
    }
    execute(*next, arrivals);
    any = true;
    MutexLock lock(mutex_);
    next->done_.store(true, std::memory_order_release);
    queue_.pop_front();
    arrivals_.pop_front();
    ++done_;
    changed_.notify_all();
  }
}

void Engine::execute(Collective& collective, const Arrivals& arrivals) {
  comm::Task& task = collective.task_;
  std::int64_t weights = 0;
  bool overflow = false;
  for (int r = 0; r < size_; ++r) {
    const comm::OpRecord& theirs = arrivals[static_cast<std::size_t>(r)]->record;
    if (!comm::same_operation(task.record, theirs)) {
      failure_.fail(Cause::mismatch,
                    comm::describe_mismatch(collective.sequence_, who(rank_), task.record, who(r), theirs));
    }
    overflow |= __builtin_add_overflow(weights, theirs.weight, &weights);
  }
  if (overflow) {
    std::string all;
    for (int r = 0; r < size_; ++r) {
      all +=
          fmt::format("{}{} of {}", r == 0 ? "" : ", ", arrivals[static_cast<std::size_t>(r)]->record.weight, who(r));
    }
    failure_.fail(Cause::mismatch, comm::describe_too_heavy(task.record, collective.sequence_, all));
  }
  if (task.record.weighted) {
    task.reduction.divisor = weights;
  } else if (task.record.op == ReduceOp::avg) {
    task.reduction.divisor = size_;
  }
  collective.total_weight_ = weights;
  if (!fits_inline(task)) return move(task, *wire_, spare_);
  std::vector<const std::byte*> sources;
  for (const auto& arrival : arrivals) {
    const bool whole =
        arrival->payload.size() == task.count() * task.element_bytes() * comm::source_parts(task.record.kind, size_);
    sources.push_back(whole ? arrival->payload.data() : nullptr);
  }
  for (int r = 0; r < size_; ++r) {
    if (!comm::is_source(task.record, r) || sources[static_cast<std::size_t>(r)] != nullptr || task.count() == 0)
      continue;
    failure_.fail(Cause::mismatch, fmt::format("{}: {} sent less than its record says; run one version of lockstep on "
                                               "every host",
                                               collective.describe(), who(r)));
  }
  comm::Scratch scratch;
  comm::pull(task, {0, task.count()}, {sources, task.count() * task.element_bytes()}, scratch);
}

// Whoever left has told before what it did; what it did not do will not come.
void Engine::check_those_who_left() {
  std::string text;
  {
    MutexLock lock(mutex_);
    for (int r = 0; r < size_ && text.empty(); ++r) {
      const auto& left = left_after_[static_cast<std::size_t>(r)];
      if (!left) continue;
      const std::string gone = fmt::format("{} left after collective {}", who(r), *left);
      if (!queue_.empty() && queue_.front()->sequence_ > *left) {
        text = fmt::format("{}; {} is in {}, which needs every rank: all ranks must take part in the same collectives",
                           gone, who(rank_), queue_.front()->describe());
      } else if (const auto parcel = post_office_.waiting_for(r)) {
        text = fmt::format("{}; {} waits for its {}", gone, who(rank_), parcel->describe());
      }
    }
  }
  if (!text.empty()) failure_.fail(Cause::peer_lost, text);
}

void Engine::acknowledge() {
  std::vector<int> peers;
  {
    MutexLock lock(mutex_);
    peers.swap(to_acknowledge_);
  }
  Frame seen;
  seen.kind = FrameKind::seen;
  for (const int peer : peers) wire_->send_frame(peer, write_frame(seen));
}

void Engine::say_goodbye() {
  Frame goodbye;
  goodbye.kind = FrameKind::goodbye;
  std::vector<int> others;
  {
    MutexLock lock(mutex_);
    goodbye.number = last_;
    for (int r = 0; r < size_; ++r) {
      const auto index = static_cast<std::size_t>(r);
      if (left_after_[index]) seen_[index] = true;  // it may be gone, and expects nothing more
      if (!seen_[index]) others.push_back(r);
    }
  }
  for (const int peer : others) wire_->send_frame(peer, write_frame(goodbye));
  // A connection that closes says the same to all as a death does: so everybody has to have seen the goodbye first.
  const Deadline patience = Deadline::after(kFarewell);
  while (!patience.expired() && !failure_.happened()) {
    acknowledge();
    {
      MutexLock lock(mutex_);
      if (std::all_of(seen_.begin(), seen_.end(), [](bool seen) { return seen; })) break;
    }
    wire_->wait(patience);
  }
  acknowledge();
}

void Engine::tell_of_failure() {
  const Failure::Known cause = failure_.known();
  Frame failed;
  failed.kind = FrameKind::failed;
  failed.number = static_cast<std::uint64_t>(cause.cause);
  failed.payload = bytes_of(std::string_view(cause.text).substr(0, kInlineBytes));
  const FrameBytes bytes = write_frame(failed);
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    try {
      wire_->send_frame(r, bytes);
    } catch (const Broken& broken) {
      // It hears of it when the connection ends.
      log_debug("{} can't be told of the failure: {}", who(r), broken.what());
    }
  }
}

void Engine::close_as(std::optional<std::string> cause) {
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    if (!cause && !failure_.happened() && (!queue_.empty() || post_office_.owes_something())) {
      cause = fmt::format("{} destroyed its group with {} collectives under way; it must wait for each work first",
                          who(rank_), queue_.size());
    }
  }
  // Before it may say goodbye: agreeing on the cause asks the store and takes its time.
  if (cause) failure_.propose(Cause::peer_lost, *cause);
  {
    MutexLock lock(mutex_);
    closing_ = true;
  }
  wire_->wake();
  join_();
  MutexLock lock(mutex_);
  closed_ = true;
  queue_.clear();  // the works hold the engine
}

void Engine::close() { close_as({}); }

void Engine::close_unwinding() {
  std::uint64_t last = 0;
  {
    MutexLock lock(mutex_);
    last = last_;
  }
  close_as(fmt::format("{} was ended by an exception of its own after collective {}; its own message says more",
                       who(rank_), last));
}

}  // namespace lockstep::wire
