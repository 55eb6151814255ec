// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/tcp/wire_tcp.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <utility>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "runtime/base/cpu.h"
#include "runtime/base/logging.h"
#include "runtime/base/resource_limit.h"
#include "runtime/comm/wire/frame.h"
#include "runtime/net/congestion_control.h"
#include "runtime/net/epoll.h"
#include "runtime/net/interfaces.h"

namespace lockstep::tcp {
namespace {

using std::chrono::nanoseconds;

// All ranks are there when they begin to connect. One that dies just then must not cost the whole timeout of the job.
constexpr std::chrono::seconds kConnectTimeout{30};
// About what a thread needs to wake.
constexpr std::chrono::microseconds kLook{300};
constexpr int kMostEvents = 64;
constexpr std::chrono::hours kMostSleep{1};
// In epoll's data, beside ranks.
constexpr std::uint64_t kBell = ~std::uint64_t{0};
constexpr std::uint64_t kConnecting = kBell - 1;

// A rank computes on one core and communicates on another: only what is left of the host's can look in vain.
nanoseconds look_on(const rendezvous::Roster& roster, int rank) {
  return 2 * rendezvous::ranks_beside(roster, rank).size() <= static_cast<std::size_t>(allowed_cores()) ? kLook
                                                                                                        : nanoseconds{};
}

}  // namespace

WireTcp::WireTcp(GroupContext context, std::vector<int> first)
    : context_(std::move(context)),
      rank_(context_.identity.rank),
      first_(std::move(first)),
      interface_(Environment::of_process().get(net::kGlooInterface)),
      address_(context_.local_address.empty() ? "127.0.0.1" : context_.local_address),
      look_(look_on(context_.roster, rank_)),
      epoll_(net::make_epoll()),
      peers_(context_.roster.size()) {}

WireTcp::~WireTcp() { close(Deadline::after({})); }

std::string WireTcp::opening() const {
  return fmt::format("connections to {} from {}",
                     first_.size() + 1 == peers_.size() ? "every rank" : "the ranks that it exchanges data with",
                     describe_own_address());
}

std::string WireTcp::describe_own_address() const {
  return interface_ ? fmt::format("interface {} ({})", *interface_, net::kGlooInterface) : "address " + address_;
}

void WireTcp::open(wire::Listener& listener, const Deadline& deadline) {
  const Deadline patience = deadline.sooner(kConnectTimeout);
  listener_ = &listener;
  std::vector<UniqueFd> sockets;
  try {
    const auto wished = net::wished_interface(net::interfaces_of_this_host(), Environment::of_process(),
                                              std::span(&net::kGlooInterface, 1));
    connecting_.emplace(
        context_.roster, rank_,
        ConnectOptions{.address = wished ? wished->address : address_, .secret = context_.secret, .check = [this] {
                         if (interrupted_.load()) throw wire::Broken("interrupted");
                       }});
    sockets = connecting_->open(*context_.store, first_, patience);
  } catch (const SystemError& error) {
    // An error of the system about an address needs more words; those about ranks and strangers have them.
    const std::string text = fmt::format(
        "TCP: {} can't connect to every rank from {}, {}: {}; {}",
        context_.roster[static_cast<std::size_t>(rank_)].describe(), describe_own_address(), patience.progress(),
        error.what(),
        limit_behind(error.error_number()).empty()
            ? kRemedy
            : "raise that limit: a rank has a socket for each rank that it exchanges data with, in each group");
    if (patience.expired()) throw Timeout(text);
    throw BackendUnavailable(text);
  }
  net::watch(epoll_.get(), EPOLL_CTL_ADD, bell_->file(), EPOLLIN, kBell);
  net::watch(epoll_.get(), EPOLL_CTL_ADD, connecting_->fd(), EPOLLIN, kConnecting);
  for (int r = 0; r < static_cast<int>(sockets.size()); ++r) {
    if (r != rank_) peers_[static_cast<std::size_t>(r)] = std::make_unique<Peer>(*this, r);
    if (UniqueFd& socket = sockets[static_cast<std::size_t>(r)]) attach(r, std::move(socket));
  }
}

void WireTcp::attach(int rank, UniqueFd socket) {
  Peer* const peer = find(rank);
  if (peer == nullptr) return;  // lost, by another way
  const std::string control = net::choose_congestion_control(socket.get());
  log_debug("TCP: to {} with {}", context_.roster[static_cast<std::size_t>(rank)].describe(), control);
  peer->connection().attach(std::move(socket));
  net::watch(epoll_.get(), EPOLL_CTL_ADD, peer->connection().fd(), EPOLLIN, static_cast<std::uint64_t>(rank));
  push(*peer);
}

bool WireTcp::is_connected(int peer) const {
  const Peer* const one = find(peer);
  return one != nullptr && one->is_attached();
}

void WireTcp::Peer::on_frame(std::span<const std::byte> frame) {
  wire_.has_news_ = true;
  wire_.listener_->on_frame(rank_, frame);
}

void WireTcp::Peer::on_through(wire::Transfer transfer) {
  wire_.has_news_ = true;
  MutexLock lock(wire_.mutex_);
  const auto found = wire_.posted_.find(transfer);
  if (found != wire_.posted_.end()) found->second.is_through = true;
}

void WireTcp::send_frame(int peer, const wire::FrameBytes& frame) {
  Peer* const to = find(peer);
  if (to == nullptr) return;
  to->connection().send_frame(std::span(frame).first(wire::used_bytes(frame)));
  push(*to);
}

wire::Transfer WireTcp::note_posted(int peer, wire::Tag tag) {
  MutexLock lock(mutex_);
  posted_[++last_] = {.peer = peer, .tag = tag};
  return last_;
}

wire::Transfer WireTcp::send(const wire::ConstPiece& piece, wire::Tag tag) {
  const wire::Transfer transfer = note_posted(piece.peer, tag);
  if (Peer* const to = find(piece.peer)) {
    to->connection().send(piece, tag, transfer);
    push(*to);
  }
  return transfer;
}

wire::Transfer WireTcp::receive(const wire::Piece& piece, wire::Tag tag) {
  const wire::Transfer transfer = note_posted(piece.peer, tag);
  if (Peer* const from = find(piece.peer)) {
    from->connection().receive(piece, tag, transfer);
    push(*from);
  }
  return transfer;
}

bool WireTcp::done(wire::Transfer transfer) {
  if (interrupted_.load()) throw wire::Broken("interrupted");
  MutexLock lock(mutex_);
  const auto found = posted_.find(transfer);
  if (found->second.is_through) {
    posted_.erase(found);
    return true;
  }
  // Behind the look at is_through: a transfer that ended before its connection did is done.
  if (find(found->second.peer) == nullptr) throw wire::Broken("a connection has ended");
  return false;
}

std::vector<int> WireTcp::awaited() {
  MutexLock lock(mutex_);
  return wire::peers_of_oldest(posted_);
}

void WireTcp::push(Peer& peer) {
  if (!peer.is_attached()) {
    if (connecting_) connecting_->ask(peer.rank());
    return;
  }
  peer.connection().write();
  const bool waits = peer.connection().wants_to_write();
  if (std::exchange(peer.waits_to_write, waits) == waits) return;
  net::watch(epoll_.get(), EPOLL_CTL_MOD, peer.connection().fd(), EPOLLIN | (waits ? EPOLLOUT : 0u),
             static_cast<std::uint64_t>(peer.rank()));
}

bool WireTcp::serve_sockets(nanoseconds limit) {
  std::array<epoll_event, kMostEvents> events;
  const auto limit_ms = std::chrono::ceil<std::chrono::milliseconds>(std::min<nanoseconds>(limit, kMostSleep));
  const int count = ::epoll_wait(epoll_.get(), events.data(), kMostEvents, static_cast<int>(limit_ms.count()));
  if (count < 0 && errno != EINTR) throw SystemError("epoll_wait", errno);
  // A bell that was rung just as its owner woke stays readable until the next sleep: that is not news.
  bool any = false;
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    if (event.data.u64 == kBell) continue;
    if (event.data.u64 == kConnecting) {
      serve_connecting();
    } else {
      serve(static_cast<int>(event.data.u64), event.events);
    }
    any = true;
  }
  return any;
}

void WireTcp::serve(int rank, std::uint32_t events) {
  Peer* const peer = find(rank);
  if (peer == nullptr) return;  // lost a moment ago
  // The thread that failed the group may have stopped waiting for its memory: nothing more is read into it.
  if (interrupted_.load() && !is_cancelled_) return;
  try {
    if ((events & ~std::uint32_t{EPOLLOUT}) != 0) peer->connection().read();
    push(*peer);  // what a receive that has become ready waited for, too
  } catch (const ConnectionEnded& ended) {
    lose(rank, ended.what());
  } catch (const wire::Broken& broken) {
    // First: a rank that speaks another protocol has not died.
    listener_->on_broken(
        fmt::format("{}: {}", context_.roster[static_cast<std::size_t>(rank)].describe(), broken.what()));
    lose(rank, broken.what());
  }
}

void WireTcp::serve_connecting() {
  if (!connecting_) return;
  for (AuthenticatedConnector::Outcome& outcome : connecting_->serve()) {
    try {
      if (outcome.problem) std::rethrow_exception(outcome.problem);
      attach(outcome.rank, std::move(outcome.socket));
    } catch (const BackendUnavailable& error) {
      // First: the rank may be alive, and another process may answer at its address.
      listener_->on_broken(error.what());
      lose(outcome.rank, error.what());
    } catch (const SystemError& error) {
      // First: a limit of this process is not a fault of the other one.
      if (!limit_behind(error.error_number()).empty()) listener_->on_broken(error.what());
      lose(outcome.rank, error.what());
    } catch (const Error& error) {
      lose(outcome.rank, error.what());
    }
  }
}

void WireTcp::lose(int rank, const std::string& how) {
  std::unique_ptr<Peer>& peer = peers_[static_cast<std::size_t>(rank)];
  // Before it is closed: a forked child may have its socket too, which keeps the watch of a closed one alive.
  if (peer != nullptr && peer->is_attached()) net::unwatch(epoll_.get(), peer->connection().fd());
  // The peer is gone before the listener hears of the loss: frames that the listener sends it then are dropped.
  peer.reset();
  has_news_ = true;
  listener_->on_lost(rank, how);
}

bool WireTcp::take_news() {
  const bool has_news = std::exchange(has_news_, false);
  if (!bell_->hear()) return has_news;
  listener_->on_bell();
  return true;
}

void WireTcp::wait(const Deadline& deadline) {
  Deadline look = Deadline::after(look_);
  while (!interrupted_.load() && !take_news() && !deadline.expired()) {
    if (look.expired()) {
      bell_->sleep_unless_rung([&] { serve_sockets(deadline.remaining()); });
      look = Deadline::after(look_);
    } else if (serve_sockets({})) {
      look = Deadline::after(look_);
    } else {
      ::sched_yield();  // to the program's thread, if there is no other core for it
    }
  }
}

bool WireTcp::poll() {
  serve_sockets({});
  return take_news();
}

void WireTcp::sleep() {
  bell_->sleep_unless_rung([&] {
    epoll_event event;  // serving it is for whoever has the wire
    if (!interrupted_.load()) ::epoll_wait(epoll_.get(), &event, 1, -1);
  });
}

void WireTcp::interrupt() {
  // The flag before the ring: the thread that the ring wakes looks at the flag once.
  interrupted_.store(true);
  if (bell_ != nullptr) bell_->ring();
}

void WireTcp::cancel_transfers() {
  // From here on serve() may read again: no connection has the memory of a work any more.
  is_cancelled_ = true;
  for (const auto& peer : peers_) {
    if (peer != nullptr) peer->connection().cancel_transfers();
  }
  MutexLock lock(mutex_);
  posted_.clear();
}

void WireTcp::close(const Deadline& deadline) {
  const auto has_more = [](const std::unique_ptr<Peer>& peer) {
    return peer != nullptr && peer->is_attached() && peer->connection().wants_to_write();
  };
  if (connecting_) net::unwatch(epoll_.get(), connecting_->fd());
  connecting_.reset();  // who has not been in reach so far is told nothing any more
  // The peers send theirs now too, and each waits for the other to take them.
  while (std::any_of(peers_.begin(), peers_.end(), has_more) && !deadline.expired()) {
    serve_sockets(deadline.remaining());
  }
  // A socket that is closed over what it has not read tells the peer to throw away what it has not read either.
  for (std::unique_ptr<Peer>& peer : peers_) {
    if (peer == nullptr) continue;
    peer->connection().shut_down();
    try {
      if (peer->is_attached()) peer->connection().read();
    } catch (const std::exception&) {
      // It has ended too.
    }
    peer.reset();
  }
}

}  // namespace lockstep::tcp
