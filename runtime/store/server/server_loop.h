// SPDX-License-Identifier: Apache-2.0
// The event loop of a TCP store's server: accepts, reads, serves and sends, for all clients in turn.
//
// Other threads see it through tcp_store_server.h. All members belong to the thread inside run(), and before run() to
// the thread that makes the object, except stop(), stop_listening(), end_greetings() and erase_all().
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
    // Connections that have not finished their greeting.
    std::size_t greeting = 0;
    // Connections, among the others, that the extension has given up, and those with the role of one.
    std::size_t given_up = 0;
    bool is_listening = true;
    bool has_ended_greetings = false;  // whether end_greetings() was called
    bool operator==(const Connections&) const = default;
  };
  // Listens. Calls `on_change` whenever the connections have changed.
  using OnChange = std::function<void(const Connections& now)>;
  ServerLoop(const TcpStoreServerOptions& options, OnChange on_change);
  ~ServerLoop() override;

  // The address that it is bound to.
  const net::HostPort& address() const { return address_; }
  // Serves until stop(), then closes all connections. False if an error, which is logged, has ended it before.
  bool run();
  // Ends run(). Any thread.
  void stop() { loop_.stop(); }
  void stop_listening();
  // Gives the clients in their greeting this much time in all. The first call counts.
  void end_greetings(std::chrono::nanoseconds timeout);
  void erase_all(std::string prefix);

 private:
  using Clock = std::chrono::steady_clock;

  struct Client {
    Client(UniqueFd socket, ServerState& state, SessionHost& host, SessionId id);
    // The address without the port.
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
  // Closes clients that take too long for their greeting, and schedules itself for the next one.
  void close_late_greetings();
  // Calls `act`, after `delay` or at once, logs an exception of it, then serves the clients that it woke.
  net::EventLoop::TimerId run_after(std::chrono::nanoseconds delay, std::function<void()> act);
  void act_and_serve(const std::function<void()>& act);
  // Logs what `act` throws: there is no memory for it, most likely because of one client, and the other clients are
  // still served.
  template <typename Act>
  void survive(Act&& act) noexcept;

  void on_ready(SessionId id, std::uint32_t events);
  void take_turn(SessionId id, Client& client, std::uint32_t events);
  // Reads once: the loop returns to a client that has more after the other clients. False if the client is closed.
  bool receive(SessionId id, Client& client);
  // Sends what the socket takes, and asks the loop for the events that this client needs next.
  void flush(SessionId id, Client& client);
  // Answers the clients whose keys or ranks have arrived, and sends what was pushed to clients. Requests queued after a
  // wait may wake further clients; and a client to which nothing can be sent is closed, of which the extension may tell
  // others.
  void serve_woken();
  // Lets `act` push to a session, and notes that. It may be called while any session is at work, so a session is closed
  // later.
  template <typename Act>
  void push_with(SessionId id, Act&& act);
  // Lets `act` work on a client, if it is still connected. Closes a client for which it throws.
  template <typename Act>
  void with_client(SessionId id, Act&& act);
  // Lets `act` work on a client's session, and sends the result. Closes a client for which `act` returns false.
  template <typename Act>
  void with_session(SessionId id, Act&& act);
  void notify_watchers(std::string_view key, const std::string* before, const std::string* after);

  // Brings the memory that sessions hold below the limit. serve_woken() closes the sessions that lose it, because one
  // may be at work now.
  void shed_the_largest();
  // Closes a client that has misbehaved. Without a reason the log has it already.
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
  ServerState state_;  // before the clients, whose sessions point to it
  std::unordered_map<SessionId, std::unique_ptr<Client>> clients_;
  // The number of greeted clients of each run, if keys_of_run is set.
  std::unordered_map<std::string, std::size_t> runs_;
  SessionId next_id_ = 1;
  Connections reported_;
  std::size_t reported_links_ = 0;  // clients that were given up when reported_ was counted
  bool has_ended_greetings_ = false;
  // The clients in their greeting, the oldest first, and until when each may greet.
  std::map<SessionId, Clock::time_point> greeting_;
  net::EventLoop::TimerId greeting_timer_;
  // The sessions to which something was pushed.
  std::vector<SessionId> pushed_;
  std::vector<std::pair<SessionId, Frame>> unsent_pushes_;  // the extension's, not sent yet
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
