// SPDX-License-Identifier: Apache-2.0
// send and recv: messages between two ranks, apart from the collectives and their order.
//
// The sender posts a description; the receiver's oldest recv of that tag takes it. Small data comes along in the frame,
// larger data is delivered once a recv has accepted it, straight into its memory: nothing is ever held back for a
// receiver that has not asked. Messages to oneself never leave the process.
//
// Threads: the engine's lock guards it. The communication thread takes the actions under the lock and runs them
// without it.
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
  bool under_way = false;  // its bytes are on their way
  Transfer transfer = 0;   // that the wire has been asked for, once it is under way
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
  // A frame about messages.
  void on_frame(int peer, const Frame& frame);
  // The actions of the communication thread, in order.
  std::deque<P2pAction> take_actions();
  bool has_actions() const { return !actions_.empty(); }
  // Does it, without the lock; true if the operation is then to be finished. Throws Broken.
  static bool run(const P2pAction& action, Wire& wire);
  void finish(WireP2pOp& p2p);
  // A message whose two sides do not fit, as a text; the group fails with it.
  const std::optional<std::string>& mismatch() const { return mismatch_; }
  // Messages for which another rank needs this one: sends that have not been taken, and recvs into whose memory the
  // other side delivers.
  std::size_t owed() const;
  // This rank leaves: no recv takes a message any more.
  void refuse_posts();
  // The first operation that `peer`, which has left, would have to do something for; nothing if there is none.
  std::shared_ptr<WireP2pOp> waiting_for(int peer) const;
  // How far an operation that is not done has come, and which rank has to do what.
  std::string progress_of(const WireP2pOp& p2p) const;

 private:
  // A message that no recv has taken.
  struct Post {
    std::uint64_t number;
    int tag;
    DType dtype;
    std::int64_t count;
    std::vector<std::byte> payload;
    std::shared_ptr<WireP2pOp> local;  // of a message to oneself: the other side
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
