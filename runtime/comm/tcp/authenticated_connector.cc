// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/tcp/authenticated_connector.h"

#include <fmt/format.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/text.h"
#include "runtime/net/address.h"
#include "runtime/net/epoll.h"
#include "runtime/net/stream.h"
#include "runtime/net/tcp_liveness.h"
#include "runtime/rendezvous/consensus.h"

namespace lockstep::tcp {
namespace {

using namespace std::chrono_literals;

constexpr auto kLookInterval = 200ms;
constexpr auto kTick = 100ms;
// For a rank that is asked for later: as long as a group has to open.
constexpr auto kReachLimit = 30s;

ListeningPlace place_in(std::string_view announced) {
  ListeningPlace place;
  place.ticket = take_word(announced);
  place.address = net::parse_host_port(announced);
  return place;
}

UniqueFd make_timer() {
  UniqueFd timer(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!timer) throw SystemError("timerfd_create", errno);
  return timer;
}

}  // namespace

AuthenticatedConnector::AuthenticatedConnector(const rendezvous::Roster& roster, int rank, ConnectOptions options)
    : options_(std::move(options)),
      epoll_(net::make_epoll()),
      own_{roster, rank, options_.secret, epoll_.get()},
      timer_(make_timer()),
      is_connected_(roster.size()) {
  is_connected_[static_cast<std::size_t>(rank)] = true;
  own_.watch(EPOLL_CTL_ADD, timer_.get(), EPOLLIN);
  const auto has_another = [this](int peer) { return has(peer) || find_attempt(peer) != attempts_.end(); };
  acceptor_.emplace(own_, options_.address, has_another);
}

AuthenticatedConnector::~AuthenticatedConnector() = default;

std::vector<UniqueFd> AuthenticatedConnector::open(store::Store& store, const std::vector<int>& ranks,
                                                   const Deadline& deadline) {
  rendezvous::Consensus consensus(store, own_.roster, own_.rank,
                                  {.name = "tcp",
                                   .what = "TCP: the ranks connect",
                                   .remedy = "see whether they still run",
                                   .check = options_.check});
  for (const std::string& place : consensus.gather(acceptor_->place(), deadline)) places_.push_back(place_in(place));
  for (const int rank : ranks) {
    if (rank < own_.rank) begin(rank, Deadline::never());
  }
  std::vector<UniqueFd> sockets(own_.roster.size());
  for (;;) {
    for (Outcome& outcome : serve()) {
      if (outcome.problem) std::rethrow_exception(outcome.problem);
      sockets[static_cast<std::size_t>(outcome.rank)] = std::move(outcome.socket);
    }
    std::vector<int> missing = ranks;
    std::erase_if(missing, [this](int rank) { return has(rank); });
    if (missing.empty()) return sockets;
    if (options_.check) options_.check();
    if (deadline.expired()) throw_missing(missing, deadline);
    net::wait_readable(fd(), deadline.sooner(kLookInterval));
  }
}

void AuthenticatedConnector::throw_missing(const std::vector<int>& missing, const Deadline& deadline) const {
  throw Timeout(
      fmt::format("TCP: {} did not connect to {}, {}{}; check the network between the hosts of these ranks, or name "
                  "another interface in GLOO_SOCKET_IFNAME",
                  joined(
                      missing, [this](int rank) { return own_.describe(rank); }, ", ", 12),
                  own_.describe(own_.rank), deadline.progress(), acceptor_ ? acceptor_->strangers() : ""));
}

std::list<ConnectAttempt>::iterator AuthenticatedConnector::find_attempt(int rank) {
  return std::ranges::find_if(attempts_, [rank](const ConnectAttempt& attempt) { return attempt.peer() == rank; });
}

void AuthenticatedConnector::ask(int rank) {
  if (has(rank) || find_attempt(rank) != attempts_.end()) return;
  begin(rank, Deadline::after(kReachLimit));
  set_timer();
}

void AuthenticatedConnector::begin(int rank, const Deadline& limit) {
  const auto attempt = attempts_.emplace(attempts_.end(), own_, rank, places_[static_cast<std::size_t>(rank)], limit);
  advance(attempt, &ConnectAttempt::tick);
}

void AuthenticatedConnector::advance(std::list<ConnectAttempt>::iterator attempt, void (ConnectAttempt::*step)()) {
  const int rank = attempt->peer();
  try {
    ((*attempt).*step)();
    if (std::optional<UniqueFd> socket = attempt->take()) {
      attempts_.erase(attempt);
      connected(rank, std::move(*socket));
    }
  } catch (const Error&) {
    attempts_.erase(attempt);
    const std::vector<int> proven = acceptor_ ? acceptor_->proven() : std::vector<int>();
    // It may have come itself, and waits for what became of this.
    if (std::find(proven.begin(), proven.end(), rank) != proven.end()) return;
    is_connected_[static_cast<std::size_t>(rank)] = true;  // nobody tries again
    outcomes_.push_back({.rank = rank, .problem = std::current_exception()});
  }
}

void AuthenticatedConnector::connected(int rank, UniqueFd socket) {
  // From here on the group's deadlines count, and the job's membership: a rank may be stopped for longer than that.
  net::disable_dead_peer_timeout(socket.get());
  is_connected_[static_cast<std::size_t>(rank)] = true;
  outcomes_.push_back({.rank = rank, .socket = std::move(socket)});
}

void AuthenticatedConnector::answer_callers() {
  for (const int rank : acceptor_->proven()) {
    const auto attempt = find_attempt(rank);
    if (has(rank)) {
      // One that was kept waiting has this rank's own connection by now.
      acceptor_->refuse(rank, rank < own_.rank ? "" : fmt::format("rank {} has connected already", rank));
    } else if (attempt == attempts_.end() || rank > own_.rank) {
      if (attempt != attempts_.end()) attempts_.erase(attempt);
      if (UniqueFd socket = acceptor_->accept(rank)) connected(rank, std::move(socket));
    }
  }
}

std::vector<AuthenticatedConnector::Outcome> AuthenticatedConnector::serve() {
  std::array<epoll_event, 64> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  if (count < 0 && errno != EINTR) throw SystemError("epoll_wait", errno);
  bool ticked = false;
  for (int i = 0; i < count; ++i) {
    const int fd = static_cast<int>(events[static_cast<std::size_t>(i)].data.u64);
    if (fd == timer_.get()) {
      std::uint64_t rings = 0;
      ticked = ::read(fd, &rings, sizeof(rings)) > 0 || ticked;
    } else if (!acceptor_ || !acceptor_->serve(fd)) {
      const auto attempt = std::ranges::find_if(attempts_, [fd](const ConnectAttempt& one) { return one.fd() == fd; });
      if (attempt != attempts_.end()) advance(attempt, &ConnectAttempt::serve);
    }
  }
  if (ticked) {
    if (acceptor_) acceptor_->tick();
    for (auto attempt = attempts_.begin(); attempt != attempts_.end();) {
      advance(attempt++, &ConnectAttempt::tick);
    }
  }
  if (acceptor_) answer_callers();
  if (acceptor_ && std::all_of(is_connected_.begin(), is_connected_.end(), [](bool one) { return one; })) {
    acceptor_->turn_away_all();
    acceptor_.reset();
  }
  std::vector<Outcome> outcomes = std::exchange(outcomes_, {});
  set_timer();
  return outcomes;
}

// It ticks while something may have to be given up. Outcomes of ask() are told at once.
void AuthenticatedConnector::set_timer() {
  const bool at_once = !outcomes_.empty();
  const bool ticks = at_once || !attempts_.empty() || (acceptor_ && acceptor_->is_busy());
  if (ticks == std::exchange(ticks_, ticks) && !at_once) return;
  const auto nanoseconds = [](std::chrono::nanoseconds time) { return timespec{0, static_cast<long>(time.count())}; };
  itimerspec times{};
  if (ticks) times = {.it_interval = nanoseconds(kTick), .it_value = nanoseconds(at_once ? 1ns : kTick)};
  if (::timerfd_settime(timer_.get(), 0, &times, nullptr) != 0) throw SystemError("timerfd_settime", errno);
}

}  // namespace lockstep::tcp
