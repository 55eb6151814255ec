// SPDX-License-Identifier: Apache-2.0
// Sessions of one server without sockets and clocks: a test says what arrives, when a timer ends, and what is read.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/store/server/server_session.h"
#include "runtime/store/server/server_state.h"

namespace lockstep::store {

// Does what TcpStoreServer does around its sessions: after each event it wakes whoever was woken by it, until nobody
// is.
class SessionBench : public SessionHost {
 public:
  explicit SessionBench(const TcpStoreServerOptions& rules = {}) : state(rules) {
    state.keys.observe([this](std::string_view key, const std::string* before, const std::string* after) {
      notify(key, before, after);
    });
  }

  ServerState state;
  // Whether clients read at once what they are sent. Without it, their sessions keep it.
  bool reading = true;
  // Replies and pushes that one session held at most at the end of an event, unsent.
  std::size_t most_unread = 0;
  // The last line that a session had for the log.
  std::string complaint;

  bool connected(SessionId id) const { return clients_.contains(id); }
  void connect(SessionId id) { clients_[id].session = std::make_unique<ServerSession>(state, *this, id); }
  void disconnect(SessionId id) {
    clients_.erase(id);
    ended(id);
    settle();
  }

  ServerSession* session(SessionId id) { return clients_.at(id).session.get(); }
  // What a client was sent since the last take(), also before it was closed.
  std::string take(SessionId id) {
    read(id);
    return take_read(id);
  }
  // The same, but only what it has read.
  std::string take_read(SessionId id) { return std::exchange(clients_.at(id).received, {}); }
  bool closed(SessionId id) const { return !clients_.at(id).session; }
  const std::string& close_reason(SessionId id) const { return clients_.at(id).close_reason; }
  bool has_timer(SessionId id) const { return timer(id).has_value(); }
  // The time that the session asked for.
  std::optional<std::chrono::nanoseconds> timer(SessionId id) const { return clients_.at(id).timer; }

  // Bytes from a client that is not closed. The session may read from them only now.
  void send(SessionId id, std::string_view bytes) {
    const std::vector<char> memory(bytes.begin(), bytes.end());
    after(id, session(id)->receive({memory.data(), memory.size()}));
  }
  // The client reads `bytes` of what it was sent.
  void read(SessionId id, std::size_t bytes = SIZE_MAX) {
    Client& client = clients_.at(id);
    if (!client.session || client.session->output().empty()) return;
    const std::string_view output = client.session->output().substr(0, bytes);
    client.received += output;
    after(id, client.session->sent(output.size()));
  }
  // The time that the session asked for is over.
  void expire(SessionId id) {
    clients_.at(id).timer.reset();
    after(id, session(id)->expire());
  }
  // A push that the client didn't ask for.
  void push(SessionId id, const Frame& frame) {
    session(id)->push(frame);
    after(id, session(id)->close_reason().empty());
  }

 protected:
  // What an extension does beside serving: hears of the ends of connections, and pushes.
  virtual void ended(SessionId) {}
  virtual std::vector<std::pair<SessionId, Frame>> take_pushes() { return {}; }

  // Wakes, pushes to and closes clients until nothing follows any more.
  void settle();

 private:
  struct Client {
    std::unique_ptr<ServerSession> session;  // null: closed
    std::string received = {};
    std::string close_reason = {};
    std::optional<std::chrono::nanoseconds> timer = {};
  };

  void after(SessionId id, bool open) {
    note(id);
    if (!open) close(id);
    settle();
  }

  void note(SessionId id) { most_unread = std::max(most_unread, session(id)->output().size()); }

  void close(SessionId id) {
    note(id);
    Client& client = clients_.at(id);
    client.received += client.session->output();
    client.close_reason = client.session->close_reason();
    client.session.reset();
    client.timer.reset();
    ended(id);
  }

  void notify(std::string_view key, const std::string* before, const std::string* after) {
    for (const SessionId id : state.legacy.watchers(key)) {
      const std::uint8_t kind = before == nullptr  ? proto::kKeyCreated
                                : after == nullptr ? proto::kKeyDeleted
                                                   : proto::kKeyUpdated;
      const auto text = [](const std::string* value) { return value != nullptr ? std::string_view(*value) : ""; };
      clients_.at(id).session->push_watch_event({{key}, {text(before), text(after)}, kind});
      pushed_.push_back(id);
    }
  }

  void start_timer(SessionId session, std::chrono::nanoseconds delay) override { clients_.at(session).timer = delay; }
  void stop_timer(SessionId session) override { clients_.at(session).timer.reset(); }
  void complain(SessionId, const std::string& what) override { complaint = what; }
  ServerExtension::Answer serve_extension(SessionId, const proto::Request&) override {
    return {.frame = {proto::kRefused, {"no extension"}}};
  }

  std::map<SessionId, Client> clients_;
  std::vector<SessionId> pushed_;
};

inline void SessionBench::settle() {
  for (bool busy = true; busy;) {
    busy = false;
    for (auto woken : {state.keys.take_woken(), state.barriers.take_released()}) {
      for (const SessionId id : woken) {
        busy = true;
        const auto found = clients_.find(id);
        if (found == clients_.end() || !found->second.session) continue;
        if (!found->second.session->wake()) close(id);
      }
    }
    for (const auto& [to, frame] : take_pushes()) {
      busy = true;
      const auto found = clients_.find(to);
      if (found == clients_.end() || !found->second.session) continue;
      pushed_.push_back(to);
      found->second.session->push(frame);
    }
    for (const SessionId id : std::exchange(pushed_, {})) {
      busy = true;
      const auto found = clients_.find(id);
      if (found == clients_.end() || !found->second.session) continue;
      if (!found->second.session->close_reason().empty()) close(id);
    }
    if (!reading) continue;
    for (auto& [id, client] : clients_) {
      while (client.session && !client.session->output().empty()) {
        busy = true;
        const std::string_view output = client.session->output();
        client.received += output;
        if (!client.session->sent(output.size())) close(id);
      }
    }
  }
}

}  // namespace lockstep::store
