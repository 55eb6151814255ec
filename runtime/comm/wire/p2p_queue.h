// SPDX-License-Identifier: Apache-2.0
// P2pQueue handles the messages of send and recv between two ranks. Messages and collectives have no order relative to
// each other.
//
// The sender sends a frame that describes the message, and the receiver matches the frame with the oldest recv that has
// the message's tag. Small data travels in the frame. Data that does not fit in the frame goes straight into the recv's
// memory, after the recv has accepted the message. A rank therefore never buffers large data for which the rank has no
// recv. A message of a rank to itself is copied inside the process.
//
// Threads: the engine's lock guards the queue. The communication thread removes actions from the queue while holding
//   the lock, and runs the actions without the lock.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/rendezvous/roster.h"
#include "runtime/comm/op_record.h"
#include "runtime/comm/wire/frame.h"

namespace lockstep::wire {

// A WireP2pOp is the send or the recv of a message.
struct WireP2pOp : comm::P2pOp {
  bool under_way = false;  // true once the message's bytes are on their way
  Transfer transfer = 0;   // the wire's transfer, if `under_way`
};

// A P2pAction is one step of a send or recv, which the communication thread runs.
struct P2pAction {
  enum class What { post, take, accept, deliver, finish } what;
  std::shared_ptr<WireP2pOp> p2p;
  std::vector<std::byte> payload = {};
};

class P2pQueue {
 public:
  P2pQueue(const rendezvous::Roster& roster, int rank);

  std::shared_ptr<WireP2pOp> start(WireP2pOp p2p);
  // Handles a frame about messages.
  void on_frame(int peer, const Frame& frame);
  // Removes and returns the actions that the communication thread must run, in order.
  std::deque<P2pAction> take_actions();
  bool has_actions() const { return !actions_.empty(); }
  // Runs an action without the lock. Returns true if the caller must then call finish() for the action's send or recv.
  // Throws Broken.
  static bool run(const P2pAction& action, Wire& wire);
  void finish(WireP2pOp& p2p);
  // Returns a text about a message whose send and recv do not match, or nullopt if all messages match. The group fails
  // with this text.
  const std::optional<std::string>& mismatch() const { return mismatch_; }
  // Returns the number of messages for which another rank needs this rank: unfinished sends, and recvs into whose
  // memory the sender still delivers data.
  std::size_t owed() const;
  // Removes the recvs that have not been matched with a message, because this rank leaves the group.
  void refuse_posts();
  // Returns the first send or recv that waits for `peer`, a rank that has left, or null if no send or recv waits
  // for `peer`.
  std::shared_ptr<WireP2pOp> waiting_for(int peer) const;
  // Returns a text that says how far an unfinished send or recv has come, and which rank must act.
  std::string progress_of(const WireP2pOp& p2p) const;

 private:
  // A Post describes a message that was sent to this rank, and that has not been matched with a recv yet.
  struct Post {
    std::uint64_t number;
    int tag;
    DType dtype;
    std::int64_t count;
    std::vector<std::byte> payload;
    std::shared_ptr<WireP2pOp> local;  // the sending side, if this rank sends the message to itself
  };
  void match();
  void take(const std::shared_ptr<WireP2pOp>& p2p, Post post);
  std::shared_ptr<WireP2pOp> find_send(int peer, std::uint64_t number) const;
  std::string who(int rank) const { return roster_[static_cast<std::size_t>(rank)].describe(); }

  const rendezvous::Roster& roster_;
  const int rank_;
  std::list<std::shared_ptr<WireP2pOp>> sends_;
  std::list<std::shared_ptr<WireP2pOp>> recvs_;
  std::vector<std::uint64_t> last_sent_;  // the number of the last send, by receiver
  std::vector<std::deque<Post>> posts_;   // the posts, by sender
  std::deque<P2pAction> actions_;
  std::optional<std::string> mismatch_;
};

}  // namespace lockstep::wire
