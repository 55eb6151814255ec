// SPDX-License-Identifier: Apache-2.0
// ServerLoop is the event loop of a TCP store's server. The loop accepts and serves all clients in turn.
//
// Other threads use the loop through tcp_store_server.h. Members belong to the thread inside run(), and before run() to
// the thread that makes the object. Any thread may call stop(), stop_listening(), end_greetings() and erase_all().
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
    // The number of greeted connections that the extension has given up, or that have the role of a given-up client.
    std::size_t given_up = 0;
    bool is_listening = true;
    bool has_ended_greetings = false;  // true once end_greetings() was called
    bool operator==(const Connections&) const = default;
  };
  // Listens at the address of the options. Calls `on_change` whenever the connections have changed.
  using OnChange = std::function<void(const Connections& now)>;
  ServerLoop(const TcpStoreServerOptions& options, OnChange on_change);
  ~ServerLoop() override;

  // Returns the address that the server is bound to.
  const net::HostPort& address() const { return address_; }
  // Serves until stop(), then closes all connections. Returns false if an error, which is logged, has ended the loop
  // before stop().
  bool run();
  // Ends run(). Any thread may call stop().
  void stop() { loop_.stop(); }
  void stop_listening();
  // Gives the clients that are in their greeting `timeout` for the whole greeting. Only the first call has an effect.
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
  // Closes clients that take too long for their greeting, and schedules itself for the next client in its greeting.
  void close_late_greetings();
  // run_after() calls `act` after `delay`, and act_and_serve() calls `act` at once. Both log an exception of `act`,
  // then serve the clients that `act` woke.
  net::EventLoop::TimerId run_after(std::chrono::nanoseconds delay, std::function<void()> act);
  void act_and_serve(const std::function<void()>& act);
  // Calls `act` and logs an exception of `act`. Most likely memory has run out because of one client, and the other
  // clients are still served.
  template <typename Act>
  void survive(Act&& act) noexcept;

  void on_ready(SessionId id, std::uint32_t events);
  void take_turn(SessionId id, Client& client, std::uint32_t events);
  // Reads once from the client. The loop returns to a client with more input after the other clients. Returns false if
  // the client is closed.
  bool receive(SessionId id, Client& client);
  // Sends as much as the socket takes, and asks the loop for the events that this client needs next.
  void flush(SessionId id, Client& client);
  // Answers the clients whose keys or ranks have arrived, and sends the frames that were pushed to clients. Requests
  // queued after a wait may wake further clients. A client to which no byte can be sent is closed, and the extension
  // may tell other clients of this client's end.
  void serve_woken();
  // Lets `act` push to a session, and notes the session in pushed_. push_with() may be called while any session is at
  // work, so a session is closed later.
  template <typename Act>
  void push_with(SessionId id, Act&& act);
  // Lets `act` work on a client, if the client is still connected. Closes a client for which `act` throws.
  template <typename Act>
  void with_client(SessionId id, Act&& act);
  // Lets `act` work on a client's session, and sends its output. Closes a client for which `act` returns false.
  template <typename Act>
  void with_session(SessionId id, Act&& act);
  void notify_watchers(std::string_view key, const std::string* before, const std::string* after);

  // Brings the memory that sessions hold below the limit. serve_woken() closes the sessions that lose memory, because a
  // session may be at work now.
  void shed_the_largest();
  // Closes a client that has misbehaved, and logs `reason`. If `reason` is empty, the log has the reason already.
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
  // The number of greeted clients of each run, if keys_of_run is set.
  std::unordered_map<std::string, std::size_t> runs_;
  SessionId next_id_ = 1;
  Connections reported_;
  std::size_t reported_links_ = 0;  // the number of given-up clients when reported_ was counted
  bool has_ended_greetings_ = false;
  // The clients in their greeting, the oldest first, with the time until which each client may greet.
  std::map<SessionId, Clock::time_point> greeting_;
  net::EventLoop::TimerId greeting_timer_;
  // The sessions that were pushed to or shed.
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
