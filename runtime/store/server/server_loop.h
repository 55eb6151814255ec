// SPDX-License-Identifier: Apache-2.0
// ServerLoop is the event loop of a TCP store's server. The loop accepts and serves all clients in turn.
//
// Other threads use the loop through tcp_store_server.h. Only the thread that runs run() uses the members of a
// ServerLoop; before run(), only the thread that constructs the ServerLoop uses the members. Any thread may call
// stop(), stop_listening(), end_greetings() and erase_all().
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "proto/request.h"
#include "runtime/base/log_limit.h"
#include "runtime/base/unique_fd.h"
#include "runtime/net/address.h"
#include "runtime/net/event_loop.h"
#include "runtime/store/server/server_session.h"
#include "runtime/store/server/server_state.h"
#include "runtime/store/server/tcp_store_server.h"

namespace lockstep::store {

class ServerLoop : public SessionHost, public ExtensionHost {
 public:
  struct Connections {
    std::size_t clients = 0;
    // The number of connections that have not finished their greeting.
    std::size_t greeting = 0;
    // The number of connections with a finished greeting whose client or role the extension has given up
    // (ServerExtension::GivenUp).
    std::size_t given_up = 0;
    bool is_listening = true;
    bool has_ended_greetings = false;  // true once end_greetings() was called
    bool operator==(const Connections&) const = default;
  };
  // Listens at the address of the options. Calls `on_change` whenever the connections have changed.
  using OnChange = std::function<void(const Connections& now)>;
  ServerLoop(const TcpStoreServerOptions& options, OnChange on_change);
  ~ServerLoop() override;

  // Returns the address at which the server listens.
  const net::HostPort& address() const { return address_; }
  // Serves until stop(), then closes all connections. If an error ends the loop before stop(), run() logs the error and
  // returns false.
  bool run();
  // Ends run(). Any thread may call stop().
  void stop() { loop_.stop(); }
  void stop_listening();
  // Shortens the time for a whole greeting to `timeout`, for the clients that are in their greeting now. Only the first
  // call has an effect.
  void end_greetings(std::chrono::nanoseconds timeout);
  void erase_all(std::string prefix);

 private:
  using Clock = std::chrono::steady_clock;

  struct Client {
    Client(UniqueFd socket, ServerState& state, SessionHost& host, SessionId id);
    // Returns the peer's address without the port.
    std::string host() const { return peer.substr(0, peer.rfind(':')); }

    UniqueFd fd;
    std::string peer;
    ServerSession session;
    std::uint32_t interest;
    net::EventLoop::TimerId timer = {};
  };

  void start_timer(SessionId session, std::chrono::nanoseconds delay) override;
  void stop_timer(SessionId session) override;
  void complain(SessionId session, const std::string& what) override;
  ServerExtension::Answer serve_extension(SessionId session, const proto::Request& request) override;
  void push(SessionId client, Frame frame) override;
  int socket_of(SessionId client) const override;
  void call_after(std::chrono::nanoseconds delay, std::function<void()> act) override;
  void post(std::function<void()> act) override;

  void close_listener();
  void accept();
  bool refuse_oldest_greeter(SessionId end, const std::string& reason);
  void add_client(UniqueFd fd);
  // Closes clients that take too long for their greeting, and schedules the next call of close_late_greetings() for the
  // next client whose greeting time will be over.
  void close_late_greetings();
  // run_after() calls `act` after `delay`, and act_and_serve() calls `act` at once. After `act` has returned or thrown,
  // run_after() and act_and_serve() serve the clients that `act` woke. If `act` throws, the exception is logged.
  net::EventLoop::TimerId run_after(std::chrono::nanoseconds delay, std::function<void()> act);
  void act_and_serve(const std::function<void()>& act);
  // Calls `act`. If `act` throws, logs the exception and returns. An exception most likely means that one client has
  // used up the memory, and the server must still serve the other clients.
  template <typename Act>
  void survive(Act&& act) noexcept;

  void on_ready(SessionId id, std::uint32_t events);
  void take_turn(SessionId id, Client& client, std::uint32_t events);
  // Reads from the client only once. If the client has sent more input, the loop reads the remaining input after it has
  // served the other clients. Returns false if the client is closed.
  bool receive(SessionId id, Client& client);
  // Sends as much output as the client's socket takes, and tells the loop which events of the socket to wait for next.
  void flush(SessionId id, Client& client);
  // Answers the clients whose awaited keys or ranks have arrived, and sends the frames that were pushed to clients.
  // Also serves the requests that the answered clients sent during their wait, and answers the clients that these
  // requests wake. If sending to a client fails, the client is closed, and the extension may push frames about the
  // closed client to other clients.
  void serve_woken();
  // Calls `act`, which pushes a frame to the session `id`, and adds `id` to pushed_. If the session must be closed,
  // serve_woken() closes the session later, because push_with() may be called while a session is serving a request.
  template <typename Act>
  void push_with(SessionId id, Act&& act);
  // Calls `act` with the client `id`, if the client is still connected. If `act` throws, closes the client.
  template <typename Act>
  void with_client(SessionId id, Act&& act);
  // Calls `act` with the session of the client `id`, and then sends the session's output. If `act` returns false,
  // closes the client.
  template <typename Act>
  void with_session(SessionId id, Act&& act);
  void notify_watchers(std::string_view key, const std::string* before, const std::string* after);

  // Drops the output of the sessions that hold most memory, until all sessions together hold at most max_held_bytes.
  // The sessions that lost output are closed later, by serve_woken(), because a session may be serving a request now.
  void shed_the_largest();
  // Closes a client that has misbehaved, and logs `reason`. An empty `reason` means that the log has the
  // reason already.
  void refuse(SessionId id, const std::string& reason);
  void close(SessionId id);
  void warn(const std::string& text);
  void report_changes();
  ServerExtension::GivenUp given_up() const;
  std::size_t count_given_up(const ServerExtension::GivenUp& links) const;

  const TcpStoreServerOptions options_;
  const OnChange on_change_;
  UniqueFd listener_;
  const net::HostPort address_;
  net::EventLoop loop_;
  LogLimit log_limit_;
  bool summary_is_due_ = false;
  ServerState state_;  // the shared state; before clients_, whose sessions point to the state
  std::unordered_map<SessionId, std::unique_ptr<Client>> clients_;
  // The number of connected clients with a finished greeting, by run. Only counted if keys_of_run is set.
  std::unordered_map<std::string, std::size_t> runs_;
  SessionId next_id_ = 1;
  Connections reported_;
  std::size_t reported_links_ = 0;  // the number of given-up clients when reported_ was counted
  bool has_ended_greetings_ = false;
  // The clients in their greeting, the oldest first, with the time at which each client must have finished
  // its greeting.
  std::map<SessionId, Clock::time_point> greeting_;
  net::EventLoop::TimerId greeting_timer_;
  // The sessions to which a frame was pushed, or whose output was dropped, since the last serve_woken().
  std::vector<SessionId> pushed_;
  std::vector<std::pair<SessionId, Frame>> unsent_pushes_;  // the extension's frames that are not sent yet
  std::string read_buffer_;
};

template <typename Act>
void ServerLoop::survive(Act&& act) noexcept {
  try {
    try {
      act();
    } catch (const std::exception& error) {
      warn(error.what());
    }
  } catch (const std::exception&) {  // there is no memory for a message either
  }
}

}  // namespace lockstep::store
