// SPDX-License-Identifier: Apache-2.0
#include "runtime/store/server/server_loop.h"

#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/base/printable.h"
#include "runtime/net/stream.h"
#include "runtime/net/tcp_socket.h"

namespace lockstep::store {
namespace {

constexpr std::size_t kReadBytes = std::size_t{64} << 10;
// The largest number of log lines about bad clients in one TcpStoreServerOptions::complaint_window.
constexpr std::size_t kLoggedLines = 20;

}  // namespace

ServerLoop::Client::Client(UniqueFd socket, ServerState& state, SessionHost& host, SessionId id)
    : fd(std::move(socket)),
      peer(net::describe_peer(fd.get())),
      session(state, host, id),
      interest(EPOLLIN | EPOLLRDHUP) {}

ServerLoop::ServerLoop(const TcpStoreServerOptions& options, OnChange on_change)
    : options_(options),
      on_change_(std::move(on_change)),
      listener_(net::tcp_listen(options.listen)),
      address_(net::local_address(listener_.get())),
      log_limit_(kLoggedLines, options.complaint_window),
      state_(options),
      read_buffer_(kReadBytes, '\0') {
  state_.keys.observe([this](std::string_view key, const std::string* before, const std::string* after) {
    notify_watchers(key, before, after);
  });
  if (options_.extension) options_.extension->attach(*this);
  loop_.add(listener_.get(), EPOLLIN, [this](std::uint32_t) { accept(); });
}

ServerLoop::~ServerLoop() = default;

bool ServerLoop::run() {
  bool was_stopped = true;
  try {
    loop_.run([this](const std::exception& error) { survive([&] { warn(error.what()); }); });
  } catch (const std::exception& error) {
    was_stopped = false;
    log_error(
        "store server at {}: the server ends because of an error, and closes the connections of all clients: {}; start "
        "the job again",
        address_.to_string(), error.what());
  }
  // Close the clients before close_listener(), because close_listener() makes the last report of the number of clients.
  clients_.clear();
  greeting_.clear();
  if (was_stopped) {
    close_listener();
  } else {
    listener_.reset();  // without the loop, which does not run any more
    report_changes();
  }
  return was_stopped;
}

// Closes the listener on the loop's thread, because the loop's thread may be in accept(), which uses the listener.
void ServerLoop::stop_listening() {
  loop_.post([this] { close_listener(); });
}

void ServerLoop::end_greetings(std::chrono::nanoseconds timeout) {
  post([this, timeout] {
    if (has_ended_greetings_) return;
    const auto earlier = std::max(options_.greeting_timeout - timeout, std::chrono::nanoseconds(0));
    for (auto& [id, limit] : greeting_) limit -= earlier;
    close_late_greetings();
    has_ended_greetings_ = true;
  });
}

void ServerLoop::erase_all(std::string prefix) {
  post([this, prefix = std::move(prefix)] { state_.keys.erase_all(prefix); });
}

void ServerLoop::close_listener() {
  if (listener_) {
    loop_.remove(listener_.get());
    listener_.reset();
  }
  report_changes();
}

void ServerLoop::report_changes() {
  Connections now{.clients = clients_.size(),
                  .greeting = greeting_.size(),
                  .given_up = reported_.given_up,
                  .is_listening = static_cast<bool>(listener_),
                  .has_ended_greetings = has_ended_greetings_};
  const ServerExtension::GivenUp links = given_up();
  if (now == reported_ && links.size() == reported_links_) return;
  now.given_up = count_given_up(links);
  reported_ = now;
  reported_links_ = links.size();
  on_change_(reported_);
}

ServerExtension::GivenUp ServerLoop::given_up() const {
  return options_.extension ? options_.extension->given_up() : ServerExtension::GivenUp();
}

std::size_t ServerLoop::count_given_up(const ServerExtension::GivenUp& links) const {
  if (links.size() == 0) return 0;  // the usual case; the code below looks at every client
  std::set<SessionId> ids;
  std::set<std::string> roles(links.roles.begin(), links.roles.end());
  for (const SessionId link : links.clients) {
    const auto found = clients_.find(link);
    if (found == clients_.end()) continue;  // the end of run() has closed all clients
    ids.insert(link);
    roles.insert(found->second->session.role());
  }
  roles.erase("");
  return static_cast<std::size_t>(std::count_if(clients_.begin(), clients_.end(), [&](const auto& client) {
    if (greeting_.contains(client.first)) return false;  // the client's role is not proved
    return ids.contains(client.first) || roles.contains(client.second->session.role());
  }));
}

net::EventLoop::TimerId ServerLoop::run_after(std::chrono::nanoseconds delay, std::function<void()> act) {
  return loop_.run_after(delay, [this, act = std::move(act)] { act_and_serve(act); });
}

void ServerLoop::act_and_serve(const std::function<void()>& act) {
  // Call serve_woken() before report_changes(), here and in on_ready(), so that a caller who waits until some number of
  // clients is connected finds all answers sent.
  survive(act);
  serve_woken();
  report_changes();
}

void ServerLoop::on_ready(SessionId id, std::uint32_t events) {
  with_client(id, [&](Client& client) { take_turn(id, client, events); });
  serve_woken();
  report_changes();
}

void ServerLoop::take_turn(SessionId id, Client& client, std::uint32_t events) {
  const bool reading = (client.interest & EPOLLIN) != 0;
  const bool gone = (events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0;
  if ((events & EPOLLIN) != 0 || (gone && reading)) {
    if (!receive(id, client)) return;
  } else if (gone) {
    return close(id);
  }
  flush(id, client);
}

bool ServerLoop::receive(SessionId id, Client& client) {
  const auto received = net::try_recv(client.fd.get(), std::as_writable_bytes(std::span(read_buffer_)));
  if (received == 0) return true;
  if (!received) {
    close(id);
    return false;
  }
  if (!client.session.receive(std::string_view(read_buffer_.data(), *received))) {
    refuse(id, client.session.close_reason());
    return false;
  }
  if (!greeting_.empty() && client.session.is_greeted() && greeting_.erase(id) != 0) {
    if (client.session.dialect() == proto::Dialect::legacy) state_.legacy.add(id, client.host());
    if (options_.keys_of_run && !client.session.run_id().empty()) ++runs_[client.session.run_id()];
  }
  return true;
}

void ServerLoop::flush(SessionId id, Client& client) {
  while (!client.session.output().empty()) {
    const auto count = net::try_send(client.fd.get(), client.session.output());
    if (!count) return close(id);
    if (*count == 0) break;
    if (!client.session.sent(*count)) return refuse(id, client.session.close_reason());
  }
  std::uint32_t interest = EPOLLRDHUP;
  if (client.session.wants_input()) interest |= EPOLLIN;
  if (!client.session.output().empty()) interest |= EPOLLOUT;
  if (interest == client.interest) return;
  loop_.change(client.fd.get(), interest);
  client.interest = interest;
}

// Repeats until no woken client is left to serve, because a served request may wake further clients, and a pushed frame
// may take a client over its memory limit. When a client is closed, the extension also pushes frames about the closed
// client to other clients.
void ServerLoop::serve_woken() {
  for (;;) {
    const std::vector<SessionId> woken = state_.keys.take_woken();
    const std::vector<SessionId> released = state_.barriers.take_released();
    for (const auto& unsent : std::exchange(unsent_pushes_, {})) {
      push_with(unsent.first, [&](ServerSession& session) { session.push(unsent.second); });
    }
    survive([this] { shed_the_largest(); });
    const std::vector<SessionId> pushed = std::exchange(pushed_, {});
    if (woken.empty() && released.empty() && pushed.empty()) return;
    // One write sends all frames that were pushed to one session.
    for (const SessionId id : pushed) {
      with_session(id, [](ServerSession& session) { return session.close_reason().empty(); });
    }
    for (const auto* const ready : {&woken, &released}) {
      for (const SessionId id : *ready) {
        with_session(id, [](ServerSession& session) { return session.wake(); });
        survive([this] { shed_the_largest(); });
      }
    }
  }
}

template <typename Act>
void ServerLoop::push_with(SessionId id, Act&& act) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) return;
  survive([&] {
    try {
      pushed_.push_back(id);
      act(found->second->session);
    } catch (const std::exception& error) {
      found->second->session.shed(error.what());  // a session that is not in pushed_ is closed at its next request
    }
    shed_the_largest();
  });
}

template <typename Act>
void ServerLoop::with_client(SessionId id, Act&& act) {
  survive([&] {
    const auto found = clients_.find(id);
    if (found == clients_.end()) return;
    try {
      act(*found->second);
    } catch (const std::exception& error) {
      // An exception most likely means that this client has used up the memory, so only this client is closed.
      if (clients_.contains(id)) refuse(id, error.what());
    }
  });
}

template <typename Act>
void ServerLoop::with_session(SessionId id, Act&& act) {
  with_client(id, [&](Client& client) {
    if (!act(client.session)) return refuse(id, client.session.close_reason());
    flush(id, client);
  });
}

void ServerLoop::start_timer(SessionId session, std::chrono::nanoseconds delay) {
  stop_timer(session);
  clients_.at(session)->timer = run_after(
      delay, [this, session] { with_session(session, [](ServerSession& expired) { return expired.expire(); }); });
}

void ServerLoop::stop_timer(SessionId session) { loop_.cancel(clients_.at(session)->timer); }

void ServerLoop::complain(SessionId session, const std::string& what) {
  warn(fmt::format("{}: {}", clients_.at(session)->peer, printable(what, 500)));
}

void ServerLoop::notify_watchers(std::string_view key, const std::string* before, const std::string* after) {
  const auto text = [](const std::string* value) { return value == nullptr ? std::string_view() : *value; };
  const auto kind = after == nullptr ? proto::kKeyDeleted : before == nullptr ? proto::kKeyCreated : proto::kKeyUpdated;
  for (const SessionId watcher : state_.legacy.watchers(key)) {
    push_with(watcher, [&](ServerSession& session) {
      session.push_watch_event({{key}, {text(before), text(after)}, kind});
    });
  }
}

ServerExtension::Answer ServerLoop::serve_extension(SessionId session, const proto::Request& request) {
  if (options_.extension) return options_.extension->serve(session, request);
  return {.frame = {proto::kRefused,
                    {fmt::format("this store serves no {}: its server was built without members",
                                 proto::shape_of(request.op).name)}}};
}

// Queues the frame, because a client that registers as a member must get its answer before the extension's frames about
// other members.
void ServerLoop::push(SessionId client, Frame frame) { unsent_pushes_.emplace_back(client, std::move(frame)); }

int ServerLoop::socket_of(SessionId client) const {
  const auto found = clients_.find(client);
  return found == clients_.end() ? -1 : found->second->fd.get();
}

void ServerLoop::call_after(std::chrono::nanoseconds delay, std::function<void()> act) {
  run_after(delay, std::move(act));
}

void ServerLoop::post(std::function<void()> act) {
  loop_.post([this, act = std::move(act)] { act_and_serve(act); });
}

void ServerLoop::shed_the_largest() {
  while (state_.held_bytes > options_.max_held_bytes && !clients_.empty()) {
    const auto largest = std::ranges::max_element(
        clients_, [](const auto& a, const auto& b) { return a.second->session.load() < b.second->session.load(); });
    ServerSession& session = largest->second->session;
    if (session.load() == 0) return;
    pushed_.push_back(largest->first);
    session.shed(
        fmt::format("the server holds {} bytes for all its clients, the limit is {}; this one has most: {} bytes",
                    state_.held_bytes, options_.max_held_bytes, session.load()));
  }
}

void ServerLoop::refuse(SessionId id, const std::string& reason) {
  Client& client = *clients_.at(id);
  survive([&] {
    if (reason.empty()) return;
    const std::string& role = client.session.role();
    warn(fmt::format("closed {}{}{}{}: {}", client.peer, role.empty() ? "" : " (", role, role.empty() ? "" : ")",
                     printable(reason, 500)));
  });
  if (!client.session.output().empty()) net::try_send(client.fd.get(), client.session.output());
  close(id);
}

// Removes the descriptor from the loop before the descriptor is closed, because the kernel may give the closed
// descriptor's number to the next connection.
void ServerLoop::close(SessionId id) {
  const auto found = clients_.find(id);
  const Client& client = *found->second;
  loop_.remove(client.fd.get());
  loop_.cancel(client.timer);
  const std::string run = greeting_.erase(id) == 0 ? client.session.run_id() : "";
  clients_.erase(found);
  // Call ended() after the client is erased, because the extension's frames about the closed client must not go to the
  // closed client.
  if (options_.extension) options_.extension->ended(id);
  // When the last client of a run has disconnected, the server erases the run's keys. The next client of the run then
  // finds no keys of earlier clients.
  if (const auto last = runs_.find(run); last != runs_.end() && --last->second == 0) {
    runs_.erase(last);
    state_.keys.erase_all(options_.keys_of_run(run));
  }
}

void ServerLoop::warn(const std::string& text) {
  if (log_limit_.admit(Clock::now())) {
    log_warn("store server at {}: {}", address_.to_string(), text);
  } else if (!summary_is_due_) {
    summary_is_due_ = true;
    loop_.run_after(log_limit_.summary_time() - Clock::now(), [this] {
      summary_is_due_ = false;
      log_warn("store server at {}: {} more warnings about clients were left out of this output", address_.to_string(),
               log_limit_.take_left_out());
    });
  }
}

}  // namespace lockstep::store
