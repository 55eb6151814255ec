// SPDX-License-Identifier: Apache-2.0
// send and recv: messages between two ranks, apart from the collectives and their order.
//
// Each ordered pair of ranks has a channel of kMessages numbered messages. The sender posts a description; a recv takes
// the first posted message with its tag. A small message travels with its description, one in an arena is copied
// straight out of it, and any other passes through the pair's window, one at a time, from when a recv has accepted it.
//
// Limit: a recv sees no further than the kMessages oldest messages of that sender which no recv has taken.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/op_record.h"
#include "runtime/comm/shm/arena.h"
#include "runtime/comm/shm/session.h"

namespace lockstep::shm {

// One side of a message.
struct ShmP2pOp : comm::P2pOp {
  bool posted = false;       // send: its description is there; recv: it accepted its message
  std::uint64_t chunks = 0;  // through the window so far
};

class ShmP2pQueue {
 public:
  ShmP2pQueue(Session& session, ArenaTable& arenas);

  std::shared_ptr<ShmP2pOp> start(ShmP2pOp p2p);
  bool pending() const { return !sends_.empty() || !recvs_.empty(); }
  // True if messages with other ranks than `peer` are pending.
  bool waits_for_others_than(int peer) const;
  // How far an operation that is not done has come, and which rank has to do what.
  std::string progress_of(const ShmP2pOp& p2p) const;
  // Messages of this rank that have not been taken.
  std::size_t owed() const { return sends_.size(); }
  // Moves what can be moved.
  void push();
  // Fails the group if the peer of an operation that is not done has left.
  void check_peer(const ShmP2pOp& p2p);

 private:
  // A message that is there and that no recv has taken.
  struct Seen {
    std::uint64_t number;
    int tag;
  };
  struct Incoming {
    std::uint64_t last_seen = 0;
    std::list<Seen> unmatched;
    std::shared_ptr<ShmP2pOp> in_window;  // the recv whose message passes through the window
  };

  MessageSlot& message(int sender, int receiver, std::uint64_t number) const {
    return session_.control().channel(sender, receiver).messages[number % kMessages];
  }
  // Says that a word of a message has changed.
  void announce();
  void push_send(ShmP2pOp& p2p);
  void push_recv(const std::shared_ptr<ShmP2pOp>& p2p);
  void look_for_new(int sender);
  void match(ShmP2pOp& p2p);
  void move_out(ShmP2pOp& p2p);
  void move_in(ShmP2pOp& p2p);
  std::size_t chunk_count(const ConstBufferView& buffer) const;

  Session& session_;
  ArenaTable& arenas_;
  std::uint64_t events_ = 0;
  std::list<std::shared_ptr<ShmP2pOp>> sends_;
  std::list<std::shared_ptr<ShmP2pOp>> recvs_;
  std::vector<std::uint64_t> last_sent_;  // by receiver: the number given last
  std::vector<Incoming> incoming_;        // by sender
};

}  // namespace lockstep::shm
