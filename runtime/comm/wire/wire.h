// SPDX-License-Identifier: Apache-2.0
// The contract of a transport between ranks, of which a process group can be made.
//
// TCP and Open MPI each fill one in. They carry; what is sent, to whom, and what is made of it is this room's
// business: so every backend across hosts gives the same bits, for every element type, and fails in the same words.
//
// Frames are small and come unasked, in order per peer. Bulk goes straight from memory to memory, between ranks that
// have agreed on it by frames: a transfer is posted, and asked about until it is through, so that many are under way
// at once.
//
// Threads: the group's communication thread calls everything but wake(), interrupt(), awaited(), opening() and sleep(),
// which any thread may call. Where there is patience(), another thread may be in the communication thread's place, one
// at a time. The listener is called from whichever thread the wire likes, one call at a time per peer.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"
#include "runtime/comm/wire/doorbell.h"

namespace lockstep::wire {

inline constexpr std::size_t kFrameBytes = 1152;
using FrameBytes = std::array<std::byte, kFrameBytes>;

class Listener {
 public:
  virtual void on_frame(int peer, std::span<const std::byte> frame) = 0;
  // The connection to `peer` is gone. `how`: what the library said.
  virtual void on_lost(int peer, const std::string& how) = 0;
  // The wire can't continue, whichever rank is to blame.
  virtual void on_broken(const std::string& how) = 0;
  // The bell of sleep_on() has been rung.
  virtual void on_bell() {}

 protected:
  ~Listener() = default;
};

// Memory that goes to a peer, which is only read, or comes from one.
template <typename Byte>
struct BasicPiece {
  int peer = 0;
  Byte* data = nullptr;
  std::size_t bytes = 0;
  // If it is small (512 KiB) it may go before its receive is posted: of a segment of which the two ranks send each
  // other as much, so that neither gets ahead of the other. Both ends say the same.
  bool is_eager = false;
};
using Piece = BasicPiece<std::byte>;
using ConstPiece = BasicPiece<const std::byte>;

// Which piece is which, for both ends. A send meets the receive that its peer has posted with the same tag; of several
// with one tag the first meets the first.
struct Tag {
  enum class Kind : std::uint8_t { collective, segment, message };
  Kind kind = Kind::collective;
  std::uint64_t number = 0;

  bool operator==(const Tag&) const = default;
  // True if a rank that waits for `this` and for `other` is held up by `this`: a message that its peer has still to
  // deliver holds up no collective.
  bool goes_before(const Tag& other) const { return kind != Kind::message && other.kind == Kind::message; }
};

// A posted transfer: numbers that grow.
using Transfer = std::uint64_t;

// A transfer was cut short: by interrupt(), or because a connection broke.
class Broken : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Wire {
 public:
  virtual ~Wire() = default;

  // "TCP", for messages.
  virtual std::string_view name() const = 0;
  // Connects the ranks: each with those that it needs at once, and with another when there is something for it.
  // Collective; blocks. Throws Timeout, PeerLost, Mismatch or BackendUnavailable.
  virtual void open(Listener& listener, const Deadline& deadline) = 0;
  // The work that open() waits for: "MPI_Init, which waits for every rank".
  virtual std::string opening() const = 0;
  // False if interrupt() can't end it, since the library knows no deadline there: it is left to itself then.
  virtual bool can_interrupt_open() const { return true; }
  // False while there is no connection to `peer`, which frames and transfers make.
  virtual bool is_connected(int) const { return true; }
  // Sends a frame, without waiting for the peer. Does nothing if the peer is lost. Throws Broken if interrupted.
  virtual void send_frame(int peer, const FrameBytes& frame) = 0;
  // Begin to move a piece to, or from, its peer, and return at once. Its memory is the wire's until done() says that
  // the transfer is through. Data whose receive is not posted waits at the sender, if it is not eager. Throw Broken.
  virtual Transfer send(const ConstPiece& piece, Tag tag) = 0;
  virtual Transfer receive(const Piece& piece, Tag tag) = 0;
  // True if it is through: then the wire has forgotten it. wait() ends when one is. Throws Broken.
  virtual bool done(Transfer transfer) = 0;
  // The peers of the oldest transfer that is not through, and of all others with its tag; of messages where nothing
  // else is under way. Any thread.
  virtual std::vector<int> awaited() = 0;
  // Sets the bell that wait() sleeps on, for a wire that does: wake() rings it, and so may others. Before open(); it
  // outlives the wire.
  virtual void sleep_on(Doorbell&) {}
  // Blocks until the listener or wake() was called or a transfer is through, since the last wait(), or until the
  // deadline.
  virtual void wait(const Deadline& deadline) = 0;
  virtual void wake() = 0;
  // How long a thread that has nothing to do is to poll() before it sleeps: about what it needs to wake, or nothing
  // where it would take another's core. Nothing, too, where wait() is all that the wire has, and from one thread alone.
  virtual std::chrono::nanoseconds patience() const { return {}; }
  // True if wait() would have returned.
  virtual bool poll() { return false; }
  // Returns once poll() may say true.
  virtual void sleep() {}
  // For good: ends the call that blocks, and each later one, but for close(). May come before open().
  virtual void interrupt() = 0;
  // After interrupt(): gives up the transfers that are not through. The library touches no Piece any more when it
  // returns.
  virtual void cancel_transfers() = 0;
  // Ends all connections, after what has been sent is out, or at the deadline. The listener is not called any more once
  // it returns.
  virtual void close(const Deadline& deadline) = 0;
};

// The answer of awaited(), from the posted transfers by their numbers, each with its peer, its tag and whether it is
// through.
template <typename Transfers>
std::vector<int> peers_of_oldest(const Transfers& posted) {
  std::set<int> peers;
  std::optional<Tag> oldest;
  for (const auto& [transfer, one] : posted) {
    if (one.is_through) continue;
    if (!oldest || one.tag.goes_before(*oldest)) {
      peers.clear();
      oldest = one.tag;
    }
    if (one.tag == *oldest) peers.insert(one.peer);
  }
  return {peers.begin(), peers.end()};
}

// Returns when it is through. A caller that waits for more than transfers has to look again after it: it may have used
// up another event that would have ended a wait(). Throws Broken.
void complete(Wire& wire, Transfer transfer);
// Moves all pieces, and returns when all have come and all are out of this rank's memory. The peers call it with pieces
// that match, in the same order. Throws Broken.
void exchange(Wire& wire, std::span<const ConstPiece> sends, std::span<const Piece> recvs);

}  // namespace lockstep::wire
