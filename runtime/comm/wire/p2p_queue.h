// SPDX-License-Identifier: Apache-2.0
// send and recv: messages between two ranks, apart from the collectives and their order.
//
// The sender posts a description; the receiver's oldest recv of that tag takes it. Small data travels in the frame,
// larger data is delivered after a recv has accepted it, straight into the recv's memory: nothing is held back for a
// receiver that has not asked. Messages to the rank itself never leave the process.
//
// Threads: the engine's lock guards it. The communication thread takes the actions under the lock and runs them without
//   it.
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

// One side of a message.
struct WireP2pOp : comm::P2pOp {
  bool under_way = false;  // whether its bytes are on their way
  Transfer transfer = 0;   // the wire's transfer, if it is under way
};

// An action of the communication thread for an operation.
struct P2pAction {
  enum class What { post, take, accept, deliver, finish } what;
  std::shared_ptr<WireP2pOp> p2p;
  std::vector<std::byte> payload = {};
};

class P2pQueue {
 public:
  P2pQueue(const rendezvous::Roster& roster, int rank);

  std::shared_ptr<WireP2pOp> start(WireP2pOp p2p);
  // Takes a frame about messages.
  void on_frame(int peer, const Frame& frame);
  // The actions of the communication thread, in order.
  std::deque<P2pAction> take_actions();
  bool has_actions() const { return !actions_.empty(); }
  // Runs an action, without the lock; true if the operation is then to be finished. Throws Broken.
  static bool run(const P2pAction& action, Wire& wire);
  void finish(WireP2pOp& p2p);
  // The text of a message whose two sides do not fit; the group fails with it.
  const std::optional<std::string>& mismatch() const { return mismatch_; }
  // The number of messages for which another rank needs this one: sends that have not been taken, and recvs into whose
  // memory the other side delivers.
  std::size_t owed() const;
  // Notes that this rank leaves: no recv takes a message any more.
  void refuse_posts();
  // The first operation that waits for `peer`, which has left; null if there is none.
  std::shared_ptr<WireP2pOp> waiting_for(int peer) const;
  // A text that says how far an operation that is not done has come, and which rank must do what.
  std::string progress_of(const WireP2pOp& p2p) const;

 private:
  // A message that no recv has taken.
  struct Post {
    std::uint64_t number;
    int tag;
    DType dtype;
    std::int64_t count;
    std::vector<std::byte> payload;
    std::shared_ptr<WireP2pOp> local;  // for a message to this rank itself: the other side
  };
  void match();
  void take(const std::shared_ptr<WireP2pOp>& p2p, Post post);
  std::shared_ptr<WireP2pOp> find_send(int peer, std::uint64_t number) const;
  std::string who(int rank) const { return roster_[static_cast<std::size_t>(rank)].describe(); }

  const rendezvous::Roster& roster_;
  const int rank_;
  std::list<std::shared_ptr<WireP2pOp>> sends_;
  std::list<std::shared_ptr<WireP2pOp>> recvs_;
  std::vector<std::uint64_t> last_sent_;  // by receiver
  std::vector<std::deque<Post>> posts_;   // by sender
  std::deque<P2pAction> actions_;
  std::optional<std::string> mismatch_;
};

}  // namespace lockstep::wire
