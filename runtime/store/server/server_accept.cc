// SPDX-License-Identifier: Apache-2.0
// This file has the functions of ServerLoop that accept connections and limit the number of clients that have not
// finished their greeting.
#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/net/open_files.h"
#include "runtime/net/stream.h"
#include "runtime/net/tcp_socket.h"
#include "runtime/store/server/server_loop.h"

namespace lockstep::store {
namespace {

// The time for which the server accepts no connection after the process ran out of descriptors or memory.
constexpr auto kAcceptPause = std::chrono::milliseconds(100);
// The number of connections that the server accepts before it serves the connected clients again.
constexpr int kAcceptBatch = 64;

}  // namespace

void ServerLoop::accept() {
  const SessionId first_now = next_id_;
  // Clients in their greeting may use at most a quarter of the process's descriptors, so that strangers can't use up
  // all descriptors.
  const net::OpenFilesLimit limit = net::open_files_limit();
  const auto max_greeting = std::clamp<std::size_t>(limit.soft / 4, 1, options_.max_greeting_clients);
  for (int i = 0; i < kAcceptBatch; ++i) {
    UniqueFd fd;
    try {
      fd = net::tcp_try_accept(listener_.get());
    } catch (const SystemError& error) {
      if (refuse_oldest_greeter(first_now, fmt::format("the next client can't be accepted, {}", error.what()))) {
        continue;
      }
      warn(
          fmt::format("{} clients are connected, the next can't be: {}; this process may have {} descriptors: raise "
                      "'ulimit -n' (up to {} without more rights)",
                      clients_.size(), error.what(), limit.soft, limit.hard));
      loop_.change(listener_.get(), 0);
      loop_.run_after(kAcceptPause, [this] {
        if (listener_) loop_.change(listener_.get(), EPOLLIN);
      });
      break;
    }
    if (!fd) break;
    if (clients_.size() >= options_.max_clients) {
      const auto full = fmt::format("{} clients are connected, the limit is {}", clients_.size(), options_.max_clients);
      if (!refuse_oldest_greeter(first_now, full)) {
        warn(fmt::format("closed {}: {}", net::describe_peer(fd.get()), full));
        continue;
      }
    }
    while (greeting_.size() >= max_greeting &&
           refuse_oldest_greeter(next_id_, fmt::format("{} clients have not finished their greeting, the limit is {}",
                                                       greeting_.size(), max_greeting))) {
    }
    add_client(std::move(fd));
  }
  report_changes();
  serve_woken();
}

// Closes the client that has been in its greeting longest, if the client's id is below `end`. Returns false if no
// client in its greeting has an id below `end`. Clients with an id of `end` or above have just connected, and keep
// their full time for the greeting.
bool ServerLoop::refuse_oldest_greeter(SessionId end, const std::string& reason) {
  if (greeting_.empty() || greeting_.begin()->first >= end) return false;
  refuse(greeting_.begin()->first, reason + "; this one is at its greeting longest");
  return true;
}

void ServerLoop::add_client(UniqueFd fd) {
  const SessionId id = next_id_++;
  try {
    auto client = std::make_unique<Client>(std::move(fd), state_, *this, id);
    // Add the client to the loop last, because the loop then calls on_ready(), which looks up the client. The function
    // close() undoes the steps of add_client() in reverse order.
    const Client& place = *clients_.emplace(id, std::move(client)).first->second;
    greeting_.emplace_hint(greeting_.end(), id, Clock::now() + options_.greeting_timeout);
    loop_.add(place.fd.get(), place.interest, [this, id](std::uint32_t events) { on_ready(id, events); });
  } catch (const std::exception& error) {
    // Memory or watches (fs.epoll.max_user_watches) have run out. The other clients are still served.
    greeting_.erase(id);
    clients_.erase(id);
    return survive([&] { warn(fmt::format("closed a client that has just come: {}", error.what())); });
  }
  if (greeting_.size() == 1) close_late_greetings();
}

void ServerLoop::close_late_greetings() {
  const auto now = Clock::now();
  while (!greeting_.empty() && greeting_.begin()->second <= now) {
    const SessionId id = greeting_.begin()->first;
    const Client& client = *clients_.at(id);
    if (client.session.is_silent() && !options_.secret && state_.legacy.any_at(client.host())) {
      greeting_.erase(id);
    } else {
      refuse(id, "it has not finished its greeting in time");
    }
  }
  loop_.cancel(greeting_timer_);
  if (greeting_.empty()) return;
  greeting_timer_ = run_after(greeting_.begin()->second - now, [this] { close_late_greetings(); });
}

}  // namespace lockstep::store
