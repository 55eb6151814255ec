// The owner thread: every NCCL call of the orderly way.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/comm/failure/messages.h"
#include "runtime/comm/nccl/engine.h"
#include "runtime/comm/nccl/helper_call.h"
#include "runtime/rendezvous/consensus.h"

namespace lockstep::nccl {
namespace {

// Between two looks at what the device and NCCL have come to, while the host has nothing else to do.
constexpr std::chrono::milliseconds kBeat{50};
// Questions whether NCCL has launched something without a pause between them: it takes microseconds as a rule.
constexpr int kLooksAtOnce = 50;
// Between two questions whether NCCL is through: at first, and at last.
constexpr std::chrono::microseconds kFirstPause{20};
constexpr std::chrono::microseconds kLastPause{1000};
// What the kernel may add to a pause: 50 us by default.
constexpr unsigned long kTimerSlackNs = 1000;
// How long a remote error has to last before it counts (https://github.com/NVIDIA/nccl/issues/2019), and how long this
// rank waits for a better cause than an error of NCCL's.
constexpr std::chrono::milliseconds kErrorPatience{500};

constexpr const char* kIdKey = "nccl/id";

}  // namespace

Lane Engine::lane() const {
  return {.communicator = communicator_.get(),
          .runtime = runtime_,
          .stream = {context_.device, stream_.get()},
          .rank = rank_,
          .size = size_,
          .world_size = static_cast<const std::int64_t*>(world_size_.get())};
}

void Engine::pause(std::chrono::nanoseconds at_most) const {
  MutexLock lock(mutex_);
  if (!failure_.happened()) changed_.wait_until(mutex_, Deadline::after(at_most));
}

void Engine::run(const Deadline& deadline) {
  ::prctl(PR_SET_TIMERSLACK, kTimerSlackNs);
  std::exception_ptr error;
  try {
    make_communicator(deadline);
    MutexLock lock(mutex_);
    open_ = true;
    notify();
  } catch (const std::exception& problem) {
    error = std::current_exception();
    propose(Cause::Kind::failed, rank_, fmt::format("{} could not join the group: {}", own_name(), problem.what()));
  }
  try {
    while (!error && step()) {
    }
  } catch (const CallFailed& problem) {
    fail_for(problem);
  } catch (const std::exception& problem) {
    propose(Cause::Kind::failed, rank_, fmt::format("{} can't go on: {}", own_name(), problem.what()));
  }
  bool undertakes = false;
  {
    MutexLock lock(mutex_);
    open_error_ = error;
    parked_ = true;
    undertakes = owner_undertakes_;
    notify();
  }
  if (undertakes) undertake();
}

void Engine::make_communicator(const Deadline& deadline) {
  if (const cudaError_t result = ::cudaSetDevice(context_.device.index); result != cudaSuccess) {
    throw BackendUnavailable(
        fmt::format("nccl: {} can't use {}: {}", own_name(), context_.device.str(), ::cudaGetErrorString(result)));
  }
  keep_out_of_captures(context_.device);
  stream_ = runtime_.create_stream(context_.device, Stream::Priority::greatest);
  const StreamView stream{context_.device, stream_.get()};
  world_size_ = runtime_.allocate(sizeof(std::int64_t), stream);
  runtime_.put(static_cast<std::int64_t*>(world_size_.get()), size_, stream);

  communicator_ = std::make_unique<Communicator>(
      api_, CommunicatorOptions{.rank = rank_, .size = size_, .name = "lockstep", .max_ctas = knobs_.max_ctas});
  try {
    ncclUniqueId id{};
    if (rank_ == 0) {
      communicator_->call("ncclGetUniqueId", api_.get_unique_id(&id));
      context_.store->set(kIdKey, std::string_view(id.internal, sizeof(id.internal)));
    } else {
      const std::string bytes = context_.store->get(kIdKey, deadline);
      if (bytes.size() != sizeof(id.internal)) {
        throw CorruptData(
            fmt::format("nccl: the store's '{}' has {} bytes, an id has {}; run one version of lockstep "
                        "on every host",
                        kIdKey, bytes.size(), sizeof(id.internal)));
      }
      std::memcpy(id.internal, bytes.data(), bytes.size());
    }
    communicator_->begin(id);
    settle(deadline, "the communicator",
           "see that the hosts reach each other (NCCL_SOCKET_IFNAME, NCCL_DEBUG=INFO), or raise the timeout");
    wait_until_all_are_up(deadline);
  } catch (const CallFailed& problem) {
    // A rank that fails takes the others' along: if there is a first cause, it is that.
    const Deadline patience = Deadline::after(kErrorPatience);
    while (problem.may_be_a_consequence() && !failure_.happened() && !patience.expired()) pause(patience.remaining());
    failure_.check();
    throw BackendUnavailable(
        fmt::format("nccl: {} can't make its communicator (NCCL {}, {}): {}{}; NCCL_DEBUG=WARN says more", own_name(),
                    version_text(api_.version), api_.path, problem.what(), missing_beside()));
  }
}

// NCCL reports remote errors that are none while it connects. And who knows which rank died may be about to tell.
bool Engine::is_through() {
  const ncclResult_t state = communicator_->state();
  if (state == ncclSuccess || state == ncclInProgress) {
    error_patience_.reset();
    return state == ncclSuccess;
  }
  if (!error_patience_) {
    error_patience_.emplace(state == ncclRemoteError ? kErrorPatience : std::chrono::nanoseconds{});
  }
  if (error_patience_->over()) throw CallFailed(api_, "ncclCommGetAsyncError", state, communicator_->get());
  return false;
}

void Engine::settle(const Deadline& deadline, const char* what, const char* remedy) {
  std::chrono::nanoseconds pause_for = kFirstPause;
  while (!is_through()) {
    failure_.check();
    if (context_.check) context_.check();
    if (deadline.expired()) {
      fail(Cause::Kind::timeout, -1,
           fmt::format("nccl: {} of {} ranks is not through on {}, {}; all have arrived, and NCCL does not go "
                       "on; {}",
                       what, size_, own_name(), deadline.progress(), remedy));
    }
    pause(pause_for);
    pause_for = std::min<std::chrono::nanoseconds>(kLastPause, pause_for * 2);
  }
}

// A rank waits until all are connected, so that an early failure doesn't abort peers that are still connecting.
void Engine::wait_until_all_are_up(const Deadline& deadline) {
  rendezvous::Consensus consensus(*context_.store, context_.roster, rank_,
                                  {.name = "nccl/up",
                                   .what = "nccl: the ranks wait for every communicator to be up",
                                   .remedy = "the output of the missing ranks says more; raise the timeout",
                                   .check = [this] { failure_.check(); }});
  try {
    consensus.decide(
        "", [](auto) { return std::string(); }, deadline);
  } catch (const Timeout& error) {
    failure_.check();
    fail(Cause::Kind::timeout, -1, error.what());
  }
}

bool Engine::step() {
  failure_.check();
  std::uint64_t seen = 0;
  {
    MutexLock lock(mutex_);
    seen = changes_;
  }
  check_those_who_left();
  bool moved = false;
  if (launching_) {
    // NCCL launches in a thread of its own.
    if (is_through()) {
      launched();
      moved = true;
    }
  } else {
    moved = run_errands() || launch_next();
  }
  watch();
  if (moved) {
    looks_at_nccl_ = 0;
    return true;
  }
  if (launching_) {
    if (++looks_at_nccl_ < kLooksAtOnce) {
      std::this_thread::yield();
    } else {
      pause(kFirstPause);
    }
    return true;
  }
  bool flying = false;
  {
    MutexLock lock(retire_mutex_);
    flying = !in_flight_.empty();
  }
  {
    MutexLock lock(mutex_);
    // The front of the queue waits for the others in checked mode.
    const bool idle = queue_.empty() && errands_.empty();
    if (!idle || flying || !closing_) {
      // What came since the looks above is looked at before any wait.
      if (changes_ == seen && !failure_.happened()) changed_.wait_until(mutex_, Deadline::after(kBeat));
      return true;
    }
  }
  leave();
  return false;
}

bool Engine::run_errands() {
  std::shared_ptr<Errand> errand;
  {
    MutexLock lock(mutex_);
    if (errands_.empty()) return false;
    errand = std::move(errands_.front());
    errands_.pop_front();
  }
  std::exception_ptr error;
  try {
    errand->body(lane());
  } catch (...) {
    error = std::current_exception();
  }
  MutexLock lock(mutex_);
  errand->error = error;
  errand->done = true;
  notify();
  return true;
}

bool Engine::all_have_come(const Item& collective) {
  const comm::OpRecord& own = *collective.record();
  std::vector<std::optional<comm::OpRecord>> records;
  {
    MutexLock lock(mutex_);
    const auto found = arrivals_.find(collective.sequence);
    if (found == arrivals_.end()) return false;
    records = found->second;
    for (const auto& record : records) {
      if (!record) return false;
    }
    arrivals_.erase(found);
  }
  comm::Tally tally(own.note);
  std::string all;
  for (int r = 0; r < size_; ++r) {
    const comm::OpRecord& theirs = *records[static_cast<std::size_t>(r)];
    if (!comm::same_operation(own, theirs)) {
      fail(Cause::Kind::mismatch, -1, comm::describe_mismatch(collective.sequence, own_name(), own, who(r), theirs));
    }
    tally.add(theirs.words);
    all += fmt::format("{}{} of {}", r == 0 ? "" : ", ", theirs.words[0], who(r));
  }
  if (tally.is_too_heavy()) {
    fail(Cause::Kind::mismatch, -1, comm::describe_too_heavy(own, collective.sequence, all));
  }
  return true;
}

bool Engine::launch_next() {
  std::shared_ptr<Item> next;
  {
    MutexLock lock(mutex_);
    if (queue_.empty()) return false;
    next = queue_.front();
  }
  if (knobs_.check_collectives && next->record() != nullptr && !all_have_come(*next)) return false;
  {
    MutexLock lock(mutex_);
    queue_.pop_front();
    current_ = next;
  }
  launching_ = next;
  next->launch(lane());
  return true;
}

void Engine::launched() {
  const std::shared_ptr<Item> item = std::exchange(launching_, nullptr);
  item->follow_up(lane());
  item->finished = runtime_.create_event(context_.device, true);
  runtime_.record(item->finished.get(), {context_.device, stream_.get()});
  if (item->sequence != 0) flight_record_.launched(item->sequence);
  MutexLock retire_lock(retire_mutex_);
  in_flight_.push_back(item);
  MutexLock lock(mutex_);
  item->launched.store(true, std::memory_order_release);
  notify();
}

void Engine::watch() {
  if (!next_look_.expired()) return;
  next_look_ = Deadline::after(kBeat);
  retire();
  watch_front();
}

void Engine::watch_front() {
  std::shared_ptr<Item> front;
  {
    MutexLock lock(retire_mutex_);
    if (!in_flight_.empty()) front = in_flight_.front();
  }
  if (!front) front = launching_;
  // Its time begins when it is its turn and what it reads is computed: how long that takes is the program's, until it
  // lets the group go. From then on that has a limit too, as in wait_for_the_device().
  const bool computed = front && (!front->ready || runtime_.reached(front->ready.get()));
  if (front != front_.lock() || computed != front_computed_) front_patience_.reset();
  front_ = front;
  front_computed_ = computed;
  if (!front) return;
  if (!front_patience_ && (computed || is_closing())) {
    front_patience_.emplace(context_.timeout);
    front_limit_ = Deadline::after(context_.timeout);
  }
  if (front_patience_ && front_patience_->over()) {
    if (!computed) fail_for_what_is_computed(*front_limit_);
    failure_.fail(what_holds_up(*front, *front_limit_));
  }

  if (!launching_) is_through();  // else step() asks for it
}

// Whoever left has launched before what it took part in; what it did not, will not come. All is in one order, so the
// first that is not done is looked at.
void Engine::check_those_who_left() {
  std::string text;
  int gone = -1;
  {
    MutexLock retire_lock(retire_mutex_);
    MutexLock lock(mutex_);
    const Item* first = in_flight_.empty() ? launching_.get() : in_flight_.front().get();
    if (first == nullptr && !queue_.empty()) first = queue_.front().get();
    for (int r = 0; first != nullptr && r < size_ && text.empty(); ++r) {
      const auto& left = left_after_[static_cast<std::size_t>(r)];
      if (!left || !first->is_beyond(r, *left)) continue;
      gone = r;
      text = first->awaited_peer() < 0 ? comm::left_early_text(who(r), left->last, own_name(), first->describe())
                                       : comm::left_unanswered_text(who(r), left->last, own_name(), first->describe());
    }
  }
  if (!text.empty()) fail(Cause::Kind::left, gone, text);
}

void Engine::fail_for(const CallFailed& error) {
  // A remote error has had its time.
  if (error.may_be_a_consequence() && error.result() != ncclRemoteError) {
    const Deadline patience = Deadline::after(kErrorPatience);
    while (!failure_.happened() && !patience.expired()) pause(patience.remaining());
  }
  std::string where;
  {
    MutexLock lock(mutex_);
    where = where_this_rank_was();
  }
  // A remote error names nobody: another rank's process may have ended.
  propose(Cause::Kind::failed, error.may_be_a_consequence() ? -1 : rank_,
          fmt::format("{} can't go on: {}; {}; a rank it talks to may have died, or the network; NCCL_DEBUG=WARN "
                      "says more",
                      own_name(), error.what(), where));
}

}  // namespace lockstep::nccl
