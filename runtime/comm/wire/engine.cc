// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/wire/engine.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <exception>

#include "lockstep/base/error.h"
#include "runtime/comm/failure/messages.h"
#include "runtime/comm/roster_cause.h"
#include "runtime/comm/wire/all_reduce_steps.h"

namespace lockstep::wire {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Shutdown::Limits kLimits;

}  // namespace

WireEngine::WireEngine(std::unique_ptr<Wire> wire, const GroupContext& context, std::unique_ptr<HostMemory> host_memory)
    : roster_(context.roster),
      rank_(context.identity.rank),
      size_(static_cast<int>(roster_.size())),
      hosts_(host_memory ? hosts_of(roster_, rank_) : Hosts{}),
      host_memory_(std::move(host_memory)),
      op_headers_(host_memory_ ? std::optional<OpHeaderTable>(std::in_place, host_memory_->op_headers(), hosts_,
                                                              host_memory_->bell_files())
                               : std::nullopt),
      counts_(host_memory_
                  ? std::optional<SegmentCounts>(std::in_place, host_memory_->counts(), hosts_, op_headers_->bells())
                  : std::nullopt),
      host_status_(host_memory_ ? std::optional<HostStatusTable>(std::in_place, host_memory_->host_status(), hosts_,
                                                                 op_headers_->bells())
                                : std::nullopt),
      bell_(op_headers_ ? Doorbell(op_headers_->bell(), host_memory_->bell_files()[hosts_.local])
                        : Doorbell(own_bell_)),
      wire_(std::move(wire)),
      pipeline_(hosts_, rank_, size_, host_memory_.get(), counts_ ? &*counts_ : nullptr, *wire_),
      p2p_queue_(roster_, rank_),
      arrival_table_(roster_.size()),
      shutdown_(
          *wire_, context,
          [this] {
            wire_->interrupt();
            if (host_memory_) host_memory_->interrupt();
            comm::ProgressEngine::ring();
          },
          kLimits) {
  wire_->sleep_on(bell_);
}

WireEngine::~WireEngine() = default;

void WireEngine::propose(Cause::Kind kind, int rank, std::string text) {
  shutdown_.failure().propose(shutdown_.cause_of(kind, rank, std::move(text), last()));
}

void WireEngine::on_frame(int peer, std::span<const std::byte> bytes) {
  const auto frame = read_frame(bytes);
  if (!frame) {
    return propose(Cause::Kind::mismatch, -1,
                   fmt::format("{} got {} bytes over {} from {} that are not a frame of this version; run one version "
                               "of lockstep on every host",
                               who(rank_), bytes.size(), wire_->name(), who(peer)));
  }
  // Post the notice that `peer` has left before acknowledging the goodbye of `peer`: after the acknowledgement `peer`
  // may exit, and the ranks of this host must then find the notice.
  if (frame->kind == FrameKind::goodbye && host_status_ && op_headers_->is_relay_of(peer)) {
    host_status_->tell_left(peer, frame->number);
  }
  if (shutdown_.on_frame(peer, *frame)) return;
  std::uint64_t expected = 0;
  {
    MutexLock lock(mutex_);
    // `expected` stays correct without the lock, because only frames from `peer` change next_of(peer), and only the
    // thread with the ProgressToken gets frames from the wire.
    expected = arrival_table_.next_of(peer);
    if (frame->kind != FrameKind::collective) {
      p2p_queue_.on_frame(peer, *frame);
      return comm::ProgressEngine::ring();
    }
  }
  if (frame->number == expected && (!op_headers_ || op_headers_->is_relay_of(peer))) {
    if (op_headers_) op_headers_->post(peer, frame->number, bytes);  // before note(): op_header_table.h says why
    MutexLock lock(mutex_);
    return arrival_table_.note(peer, {frame->record, {frame->payload.begin(), frame->payload.end()}, Clock::now()});
  }
  propose(Cause::Kind::mismatch, -1,
          fmt::format("{} got word of collective {} over {} from {}, and collective {} is next; run one version of "
                      "lockstep on every host",
                      who(rank_), frame->number, wire_->name(), who(peer), expected));
}

std::string WireEngine::where_this_rank_was() const {
  MutexLock lock(mutex_);
  return fmt::format("{} was in {}", who(rank_), queue_.empty() ? "no collective" : queue_.front()->describe());
}

// A rank that is connected to this rank sends its goodbye over the connection, after its other frames. While a rank is
// connected to this rank, on_bell() therefore ignores a notice that the connected rank has left.
void WireEngine::on_bell() {
  if (!host_status_ || !host_status_->has_news()) return;
  for (int r = 0; r < size_; ++r) {
    if (r == rank_ || wire_->is_connected(r)) continue;
    if (const auto last = told_to_have_left(r)) shutdown_.note_left(r, *last);
  }
}

std::optional<std::uint64_t> WireEngine::told_to_have_left(int rank) const {
  return host_status_ ? host_status_->left_after(rank) : std::nullopt;
}

void WireEngine::on_lost(int peer, const std::string& how) {
  if (const auto last = told_to_have_left(peer)) shutdown_.note_left(peer, *last);
  if (!shutdown_.is_loss(peer)) return;
  propose(Cause::Kind::lost, peer,
          fmt::format("{} has died: its process ended, by a signal or an exit, without closing its group, or its host "
                      "can't be reached; {} ({}: {})",
                      who(peer), where_this_rank_was(), wire_->name(), how));
}

void WireEngine::on_peer_failure(Cause cause) {
  const auto rank = comm::rank_in(roster_, cause.rank);
  if (shutdown_.leaving() || (rank && (shutdown_.left_after(*rank) || told_to_have_left(*rank)))) return;
  cause.text = comm::named_by_group(roster_, cause.text + "; " + where_this_rank_was());
  shutdown_.failure().propose_async(cause);
}

void WireEngine::on_broken(const std::string& how) {
  propose(Cause::Kind::failed, rank_, fmt::format("{} can't continue: {}: {}", who(rank_), wire_->name(), how));
}

void WireEngine::run() {
  token_.take();
  try {
    work();
  } catch (const Broken& broken) {
    shutdown_.wait_for_a_cause(broken.what(), last());
  } catch (const std::exception& error) {
    on_broken(error.what());  // keeps an earlier cause, which `error` may be
  }
  try {
    if (shutdown_.failure().happened()) {
      // The order of these calls matters. Call cancel_transfers() before release_buffers(), because after
      // release_buffers() the program, which waits in raise(), may free the buffers that the library uses. The peers
      // are told of the failure only after release_buffers(), because a slow peer must not delay the program. The wire
      // is closed last, because a peer that has not heard of the failure takes the closed connection for the death of
      // this rank.
      wire_->cancel_transfers();
      shutdown_.release_buffers();
      shutdown_.tell_of_failure();
    }
    wire_->close(Deadline::after(kLimits.aftermath));
  } catch (const std::exception& error) {
    on_broken(error.what());
  }
  token_.end();
  shutdown_.release_buffers();
}

void WireEngine::work() {
  for (;;) {
    // `thrown_` holds the exception that a thread of the program caught while that thread had the ProgressToken. Only
    // this thread may end the engine, so this thread throws the exception again.
    if (thrown_) std::rethrow_exception(thrown_);
    const Step done = step(false);
    if (done == Step::last) return;
    if (wire_->patience().count() > 0) {
      if (!wire_->poll() && done == Step::nothing) await_news();
    } else if (done == Step::nothing) {
      // A wire whose patience() is 0 allows only one thread, so this thread keeps the token while it waits.
      wire_->wait(Deadline::never());
    }
  }
}

void WireEngine::await_news() {
  const Deadline look = Deadline::after(wire_->patience());
  while (!wire_->poll()) {
    if (token_.is_wanted()) return token_.yield_to_caller();
    if (look.expired()) {
      // Release the token before the sleep; otherwise a thread of the program that wants the token would first have to
      // wake this thread, and then wait for the token.
      token_.release();
      wire_->sleep();
      return token_.take();
    }
    ::sched_yield();  // yields to the program's thread, which may have no other core
  }
}

// The lock is held once while all work is taken from the queues, so that `leaving` can't miss work that is queued
// meanwhile. Everything that may block or wait for other ranks runs without the lock, because the program's thread
// needs the lock to start the next collective. If the send and recv of a message do not match, step() fails the group
// before the messages' actions run, because the actions may block. Announcements are sent before actions and
// collectives run, because actions and collectives may wait for peers that wait for the announcements. Each step
// acknowledges the goodbyes that have arrived, because a leaving peer waits for the acknowledgement. A step looks for
// ranks that have left only if the step found no other work, because other work may still use data that a rank sent
// before its goodbye.
WireEngine::Step WireEngine::step(bool is_caller) {
  if (shutdown_.failure().happened()) return is_caller ? Step::none_for_caller : Step::last;
  std::vector<std::shared_ptr<WireCollective>> fresh;
  std::deque<P2pAction> actions;
  std::optional<std::string> mismatch;
  bool leaving = false;
  {
    MutexLock lock(mutex_);
    const bool next_blocks = !queue_.empty() && blocks(queue_.front()->args_);
    if (is_caller && (next_blocks || p2p_queue_.has_actions() || closing_)) return Step::none_for_caller;
    // `most` is the last collective that this rank may announce now. The announcement of a later collective would
    // overwrite a slot of op_headers_ that a rank of this host may not have read.
    const std::uint64_t most = op_headers_ ? arrival_table_.taken() + OpHeaderTable::kAhead : last_.load();
    for (const auto& collective : queue_) {
      if (collective->sequence_ > announced_ && collective->sequence_ <= most) fresh.push_back(collective);
    }
    announced_ += fresh.size();
    actions = p2p_queue_.take_actions();
    mismatch = p2p_queue_.mismatch();
    leaving = closing_ && queue_.empty() && actions.empty();
  }
  if (mismatch) shutdown_.failure().fail(shutdown_.cause_of(Cause::Kind::mismatch, -1, *mismatch, last()));
  for (const auto& collective : fresh) announce(*collective);
  for (const P2pAction& action : actions) {
    if (!P2pQueue::run(action, *wire_)) continue;
    {
      MutexLock lock(mutex_);
      p2p_queue_.finish(*action.p2p);
    }
    comm::ProgressEngine::ring();
  }
  shutdown_.acknowledge();
  if (run_collectives(is_caller) || !actions.empty()) return Step::something;
  check_departed_ranks();
  if (!leaving) return Step::nothing;
  // Before the goodbye, post the notice that this rank leaves, because this process may end after the goodbye. A rank
  // of this host without a connection to this rank reads the notice when that rank hears of the end of this process.
  if (host_status_) host_status_->tell_left(rank_, last());
  shutdown_.say_goodbye(last(), op_headers_ ? op_headers_->relay_ranks() : std::vector<int>());
  return Step::last;
}

void WireEngine::announce(WireCollective& collective) {
  const comm::CollectiveArgs& args = collective.args_;
  std::vector<std::byte> payload;
  if (fits_inline(args) && comm::is_source(args.record, rank_)) {
    const std::size_t stride = args.count() * args.element_bytes();
    payload.resize(stride * comm::source_parts(args.record.kind, size_));
    comm::stage(args, {0, args.count()}, payload.data(), stride);
  } else if (shares_memory() && args.record.kind == comm::OpKind::all_reduce) {
    payload = written(host_memory_->find(args.input));
  }
  Frame frame;
  frame.number = collective.sequence_;
  frame.record = args.record;
  frame.payload = payload;
  const FrameBytes bytes = write_frame(frame);
  if (op_headers_) {
    for (const int relay : op_headers_->relay_ranks()) wire_->send_frame(relay, bytes);
    op_headers_->post(rank_, frame.number, bytes);
  } else {
    for (int i = 1; i < size_; ++i) wire_->send_frame((rank_ + i) % size_, bytes);
  }
  // Call note() after post(), because note() lets this rank announce later collectives. The slots of later collectives
  // must be filled after the slot of this collective.
  MutexLock lock(mutex_);
  arrival_table_.note(rank_, {args.record, std::move(payload), Clock::now()});
}

void WireEngine::read_op_headers() {
  if (!op_headers_) return;
  for (const int rank : op_headers_->relayed_by_others()) {
    while (const auto frame = op_headers_->read(rank, arrival_table_.next_of(rank))) {
      arrival_table_.note(rank, {frame->record,
                                 {frame->payload.begin(), frame->payload.end()},
                                 op_headers_->time_of(rank, arrival_table_.next_of(rank))});
    }
  }
}

bool WireEngine::run_collectives(bool is_caller) {
  bool any = false;
  while (start_next_collective(is_caller)) any = true;
  return pipeline_.step() || any;
}

bool WireEngine::blocks(const comm::CollectiveArgs& args) const {
  return args.record.kind == comm::OpKind::allocate || (!fits_inline(args) && !pipeline_.serves(args));
}

bool WireEngine::start_next_collective(bool is_caller) {
  std::shared_ptr<WireCollective> next;
  std::optional<Arrivals> arrivals;
  {
    MutexLock lock(mutex_);
    read_op_headers();
    const auto found = std::find_if(
        queue_.begin(), queue_.end(),
        [number = arrival_table_.taken() + 1](const auto& collective) { return collective->sequence_ == number; });
    if (found == queue_.end()) return false;
    next = *found;
    // A blocking operation starts only when the pipeline is empty, because the operation would keep this thread from
    // moving segments.
    if (blocks(next->args_) && (is_caller || !pipeline_.empty())) return false;
    arrivals = arrival_table_.take();
    if (!arrivals) return false;
    next->last_arrival_ = last_of(*arrivals);
  }
  // agree_on() runs without the lock, because after a mismatch agree_on() waits until the ranks agree on the
  // first cause.
  agree_on(*next, *arrivals);
  // The captured address of the collective stays valid, because queue_ holds the collective until finish(). The
  // captured `this` stays valid, because each collective holds the engine.
  const auto finish_it = [this, collective = next.get()] { finish(*collective); };
  if (!fits_inline(next->args_) && pipeline_.serves(next->args_)) {
    pipeline_.add(next->args_, *arrivals, finish_it);
  } else {
    execute(next->args_, *arrivals);
    pipeline_.after_all(finish_it);  // collectives are done in the order of their start
  }
  return true;
}

void WireEngine::finish(WireCollective& collective) {
  {
    MutexLock lock(mutex_);
    // The store to done_ has release order, so that a poll() that reads done_ without the lock also sees the
    // collective's words and result.
    collective.done_.store(true, std::memory_order_release);
    std::erase_if(queue_, [&](const auto& other) { return other.get() == &collective; });
  }
  // Ring the process's bell after the store to done_; ring() begins with a fence (comm/progress.h). If ring() came
  // before the store to done_, a waiting thread could count itself as a sleeper after ring(), find done_ unset and
  // sleep for kSlice.
  comm::ProgressEngine::ring();
}

void WireEngine::agree_on(WireCollective& collective, const Arrivals& arrivals) {
  comm::CollectiveArgs& args = collective.args_;
  const Comparison comparison = compare(args, collective.sequence_, arrivals, roster_);
  if (comparison.mismatch) {
    shutdown_.failure().fail(shutdown_.cause_of(Cause::Kind::mismatch, -1, *comparison.mismatch, collective.sequence_));
  }
  if (args.record.weighted) {
    args.reduction.divisor = comparison.words[0];
  } else if (args.record.op == ReduceOp::avg) {
    args.reduction.divisor = size_;
  }
  collective.words_ = comparison.words;
}

void WireEngine::execute(const comm::CollectiveArgs& args, const Arrivals& arrivals) {
  if (args.record.kind == comm::OpKind::allocate && shares_memory()) {
    return allocate(static_cast<std::size_t>(args.record.count));
  }
  const Hosts* const hosts = sums_in_rank_order() ? nullptr : &hosts_;
  if (!fits_inline(args)) return move(args, hosts, *wire_, scratch_);
  const std::size_t stride = args.count() * args.element_bytes();
  std::vector<const std::byte*> sources;
  for (const auto& arrival : arrivals) sources.push_back(arrival->payload.data());
  const comm::OpKind kind = args.record.kind;
  if (hosts != nullptr && (comm::is_reduction_in_place(kind) || kind == comm::OpKind::reduce_scatter)) {
    if (stride == 0 || (kind == comm::OpKind::reduce && rank_ != args.record.root)) return;
    for (const std::byte*& source : sources) source += comm::part_read(kind, rank_) * stride;
    return reduce_by_hosts(args.reduction, hosts, sources, static_cast<std::byte*>(args.output.data), args.count());
  }
  comm::Scratch scratch;
  comm::pull(args, {0, args.count()}, {sources, stride}, scratch);
}

void WireEngine::allocate(std::size_t bytes) {
  Allocated allocated;
  try {
    allocated.arena = host_memory_->allocate(bytes);
  } catch (const BackendUnavailable& error) {
    allocated.problem = error.what();
  }
  MutexLock lock(mutex_);
  allocated_ = std::move(allocated);
}

WireEngine::Allocated WireEngine::take_allocated() {
  MutexLock lock(mutex_);
  return std::exchange(allocated_, {});
}

// Fails the group if this rank's work needs a rank that has left. Before its goodbye, a rank has announced all work in
// which it takes part, so a rank that has left never takes part in later work.
void WireEngine::check_departed_ranks() {
  std::string text;
  int gone_rank = -1;
  {
    MutexLock lock(mutex_);
    for (int r = 0; r < size_ && text.empty(); ++r) {
      const auto left = shutdown_.left_after(r);
      if (!left) continue;
      gone_rank = r;
      if (!queue_.empty() && queue_.front()->sequence_ > *left) {
        text = comm::left_early_text(who(r), *left, who(rank_), queue_.front()->describe());
      } else if (const auto p2p = p2p_queue_.waiting_for(r)) {
        text = comm::left_unanswered_text(who(r), *left, who(rank_), p2p->describe());
      }
    }
  }
  if (!text.empty()) shutdown_.failure().fail(shutdown_.cause_of(Cause::Kind::left, gone_rank, text, last()));
}

// Closes the group. The communication thread runs collectives from queue_, so close_as() clears queue_ only after that
// thread has ended. If queue_ were not cleared, its collectives would keep the engine alive for ever.
void WireEngine::close_as(std::optional<std::string> cause) {
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    const std::size_t messages = p2p_queue_.owed();
    if (!cause && !shutdown_.failure().happened() && (!queue_.empty() || messages > 0)) {
      cause = comm::destroyed_text(who(rank_), queue_.size(), messages);
    }
    // A rank may say goodbye only if no other rank still needs this rank for a collective or a message. If the group
    // fails with `cause`, the communication thread must not say goodbye while the ranks agree on the cause.
    closing_ = !cause;
    if (closing_) p2p_queue_.refuse_posts();
  }
  if (cause) propose(Cause::Kind::failed, rank_, *cause);
  // Wake the communication thread and give up the token before join_(), because the communication thread may be asleep,
  // and needs the token to end.
  wire_->wake();
  token_.give_up_of_this_thread();
  join_();
  shutdown_.stop();
  MutexLock lock(mutex_);
  closed_ = true;
  queue_.clear();  // the works hold the engine
}

void WireEngine::close() { close_as({}); }

void WireEngine::close_unwinding() { close_as(comm::unwound_text(who(rank_), last())); }

}  // namespace lockstep::wire
