// SPDX-License-Identifier: Apache-2.0
// The event loop of a TCP store's server: accepts, reads, serves and sends, for all clients in turn.
//
// tcp_store_server.h is the face that other threads see. Everything here belongs to the thread inside run(), and before
// run() to whoever makes it, but for stop(), stop_listening(), end_greetings() and erase_all().
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
    // Those among them that have not finished their greeting.
    std::size_t greeting = 0;
    // Those of the others that the extension has given up, and those that have the role of one.
    std::size_t given_up = 0;
    bool is_listening = true;
    bool has_ended_greetings = false;  // of end_greetings()
    bool operator==(const Connections&) const = default;
  };
  // Listens. `on_change` is told whenever that has changed.
  using OnChange = std::function<void(const Connections& now)>;
  ServerLoop(const TcpStoreServerOptions& options, OnChange on_change);
  ~ServerLoop() override;

  // The address it is bound to.
  const net::HostPort& address() const { return address_; }
  // Serves until stop(), then closes all. False if an error has ended it before, which is in the log.
  bool run();
  // Any thread.
  void stop() { loop_.stop(); }
  void stop_listening();
  // Gives those who are at their greeting this much time for it in all. The first call counts.
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
  // Closes who is too long at its greeting, and comes back when the next will be.
  void close_late_greetings();
  // Calls `act`, after `delay` or at once, logs an exception of it, then serves whoever it woke.
  net::EventLoop::TimerId run_after(std::chrono::nanoseconds delay, std::function<void()> act);
  void act_and_serve(const std::function<void()>& act);
  // Logs what `act` throws: there is no memory for it, most likely for one client's sake, and the others are served on.
  template <typename Act>
  void survive(Act&& act) noexcept;

  void on_ready(SessionId id, std::uint32_t events);
  void take_turn(SessionId id, Client& client, std::uint32_t events);
  // Reads once: the loop comes back to a client that has more, after the others. False if the client is closed.
  bool receive(SessionId id, Client& client);
  // Sends what can be sent and asks the loop for what this client needs next.
  void flush(SessionId id, Client& client);
  // Answers the clients whose keys or ranks have come, and sends what they were pushed. Requests behind their waits may
  // wake others in turn; and a client that can't be sent anything is closed, of which the extension may tell others.
  void serve_woken();
  // Notes that it was sent something unasked. May be called while any session is at work, so it is closed later.
  template <typename Act>
  void push_with(SessionId id, Act&& act);
  // Lets `act` do something with a client that may have gone. Closes one for which it throws.
  template <typename Act>
  void with_client(SessionId id, Act&& act);
  // The same with its session, and sends what came of it. Closes one for which `act` returns false.
  template <typename Act>
  void with_session(SessionId id, Act&& act);
  void notify_watchers(std::string_view key, const std::string* before, const std::string* after);

  // Brings what is held below its limit. Those who lose it are closed by serve_woken(): one may be at work now.
  void shed_the_largest();
  // Closes a client that has done wrong. Without a reason it is in the log already.
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
  std::unordered_map<std::string, std::size_t> runs_;  // greeted clients of each, where keys_of_run wants to know
  SessionId next_id_ = 1;
  Connections reported_;
  std::size_t reported_links_ = 0;  // that were given up when reported_ was counted
  bool has_ended_greetings_ = false;
  std::map<SessionId, Clock::time_point> greeting_;  // who hasn't finished, the oldest first, and until when it may
  net::EventLoop::TimerId greeting_timer_;
  std::vector<SessionId> pushed_;                           // who was sent something unasked
  std::vector<std::pair<SessionId, Frame>> unsent_pushes_;  // of the extension, not sent yet
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
  } catch (const std::exception&) {  // nor is there memory to say so
  }
}

}  // namespace lockstep::store
