// SPDX-License-Identifier: Apache-2.0
// Bytes between ranks over TCP.
//
// The communication thread does it all: it writes when something is posted, reads when it polls or waits, and sleeps on
// the sockets and on its bell when there is nothing to do. Where the host has cores to spare it looks for a moment
// before it sleeps, for to be woken takes longer than a small message; and a thread of the program's that waits may be
// in its place.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/base/unique_fd.h"
#include "runtime/comm/backend.h"
#include "runtime/comm/tcp/authenticated_connector.h"
#include "runtime/comm/tcp/connection.h"
#include "runtime/comm/wire/wire.h"

namespace lockstep::tcp {

class WireTcp final : public wire::Wire {
 public:
  // `first`: the ranks that it connects with in open(), each of which names it too.
  WireTcp(GroupContext context, std::vector<int> first);
  ~WireTcp() override;

  std::string_view name() const override { return "TCP"; }
  void open(wire::Listener& listener, const Deadline& deadline) override;
  std::string opening() const override;
  bool is_connected(int peer) const override;
  void send_frame(int peer, const wire::FrameBytes& frame) override;
  wire::Transfer send(const wire::ConstPiece& piece, wire::Tag tag) override;
  wire::Transfer receive(const wire::Piece& piece, wire::Tag tag) override;
  bool done(wire::Transfer transfer) override;
  std::vector<int> awaited() override;
  void sleep_on(wire::Doorbell& bell) override { bell_ = &bell; }
  void wait(const Deadline& deadline) override;
  void wake() override { bell_->ring(); }
  std::chrono::nanoseconds patience() const override { return look_; }
  bool poll() override;
  void sleep() override;
  void interrupt() override;
  void cancel_transfers() override;
  void close(const Deadline& deadline) override;

 private:
  // A peer, and what its connection tells of.
  class Peer final : public Connection::Listener {
   public:
    Peer(WireTcp& wire, int rank) : wire_(wire), rank_(rank), connection_(*this) {}
    void on_frame(std::span<const std::byte> frame) override;
    void on_through(wire::Transfer transfer) override;

    Connection& connection() { return connection_; }
    bool is_attached() const { return connection_.is_attached(); }
    int rank() const { return rank_; }
    bool waits_to_write = false;  // epoll has been told so

   private:
    WireTcp& wire_;
    const int rank_;
    Connection connection_;
  };

  // A transfer that done() has not said to be through.
  struct Posted {
    int peer = -1;
    wire::Tag tag = {};
    bool is_through = false;
  };

  Peer* find(int rank) const { return peers_[static_cast<std::size_t>(rank)].get(); }
  wire::Transfer note_posted(int peer, wire::Tag tag);
  void attach(int rank, UniqueFd socket);
  // Sends what `peer` takes now, and has epoll tell when it takes more. Without a connection it asks for one.
  void push(Peer& peer);
  void serve_connecting();
  // Reads and writes where that can be done, after `limit` at most. False if there was nothing to do.
  bool serve_sockets(std::chrono::nanoseconds limit);
  void serve(int rank, std::uint32_t events);
  std::string describe_own_address() const;
  void lose(int rank, const std::string& how);
  bool take_news();

  const GroupContext context_;
  const int rank_;
  const std::vector<int> first_;
  const std::optional<std::string> interface_;  // the wish in GLOO_SOCKET_IFNAME, as for PyTorch; none:
  const std::string address_;                   // the one towards the store; loopback if that is in this process
  // How long it looks before it sleeps.
  const std::chrono::nanoseconds look_;
  UniqueFd epoll_;
  wire::Doorbell* bell_ = nullptr;
  wire::Listener* listener_ = nullptr;
  std::optional<AuthenticatedConnector> connecting_;  // while it is open
  std::vector<std::unique_ptr<Peer>> peers_;          // by rank; null: this rank, and who is lost
  std::atomic<bool> interrupted_{false};
  bool is_cancelled_ = false;
  bool has_news_ = false;  // since the last wait()
  wire::Transfer last_ = 0;

  Mutex mutex_;  // for awaited(); the communication thread alone writes
  std::map<wire::Transfer, Posted> posted_ GUARDED_BY(mutex_);
};

}  // namespace lockstep::tcp
