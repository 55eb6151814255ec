// SPDX-License-Identifier: Apache-2.0
// Wire is the interface of a transport that moves bytes between the ranks of a process group.
//
// The TCP backend and the Open MPI backend each implement Wire. A Wire only moves bytes; WireEngine decides which bytes
// go to which rank, and uses the received bytes. With WireEngine, the TCP and Open MPI backends give equal bits for
// every element type and report failures in equal words.
//
// A frame is a small message that a rank may send at any time. Frames from one peer arrive in the order in which the
// peer sent them. Before bulk data moves, two ranks exchange frames to agree on the transfer; the data then goes
// straight from the sender's memory to the receiver's memory. A rank posts a transfer and polls until the transfer is
// done, so many transfers can run at once.
//
// Threads: the group's communication thread calls all functions of Wire except wake(), interrupt(), awaited(),
//   opening() and sleep(), which any thread may call. If patience() is not 0, another thread may act as the
//   communication thread, one thread at a time. The wire may call the Listener from any thread, but makes only one call
//   at a time for each peer.
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
  // Called when the connection to `peer` has ended. `how` is the library's message.
  virtual void on_lost(int peer, const std::string& how) = 0;
  // Called when an error stops the wire on this rank, whichever rank caused the error.
  virtual void on_broken(const std::string& how) = 0;
  // Called when the doorbell that was given to sleep_on() was rung.
  virtual void on_bell() {}

 protected:
  ~Listener() = default;
};

// A piece is a block of memory that is sent to a peer, or that receives a peer's bytes. The wire reads, but never
// writes, the memory of a piece that is sent.
template <typename Byte>
struct BasicPiece {
  int peer = 0;
  Byte* data = nullptr;
  std::size_t bytes = 0;
  // True if a piece of at most 512 KiB may be sent before the peer has posted the receive. REQUIRES: in the piece's
  // segment, the two ranks send each other equal numbers of bytes, so that neither rank gets ahead of the other. The
  // sender and the receiver of a piece pass equal values of `is_eager`.
  bool is_eager = false;
};
using Piece = BasicPiece<std::byte>;
using ConstPiece = BasicPiece<const std::byte>;

// The sender and the receiver match pieces by Tag. A send is matched with the receive that the peer has posted with an
// equal tag. If several pieces have equal tags, the first send is matched with the first receive.
struct Tag {
  enum class Kind : std::uint8_t { collective, segment, message };
  Kind kind = Kind::collective;
  std::uint64_t number = 0;

  bool operator==(const Tag&) const = default;
  // Returns true if a rank that waits for a transfer with this tag, and for a transfer with the tag `other`, is held up
  // by the transfer with this tag. A collective never waits for the delivery of a message, so goes_before() puts the
  // tags of messages last.
  bool goes_before(const Tag& other) const { return kind != Kind::message && other.kind == Kind::message; }
};

// A Transfer is the number by which the wire knows a posted transfer. A transfer that is posted later has a
// larger number.
using Transfer = std::uint64_t;

// Broken is thrown when a transfer was cut short by interrupt() or by a broken connection.
class Broken : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Wire {
 public:
  virtual ~Wire() = default;

  // Returns the transport's name in messages: "TCP".
  virtual std::string_view name() const = 0;
  // Connects this rank with the ranks that it needs from the start. Two ranks that do not need each other from the
  // start are connected later, by their first frame or transfer. All ranks call open(), which blocks. Throws Timeout,
  // PeerLost, Mismatch or BackendUnavailable.
  virtual void open(Listener& listener, const Deadline& deadline) = 0;
  // Returns a phrase for messages that says what open() waits for, such as "MPI_Init, which waits for every rank".
  virtual std::string opening() const = 0;
  // Returns false if interrupt() can't end a running open(), because the call of the transport's library takes no
  // deadline. If open() can't be interrupted, the engine abandons the thread that runs open().
  virtual bool can_interrupt_open() const { return true; }
  // Returns false while this rank has no connection to the given peer. The first frame or transfer to a peer opens the
  // connection to the peer.
  virtual bool is_connected(int) const { return true; }
  // Sends a frame to `peer` and returns without waiting for the peer. Does nothing if the peer is lost. Throws Broken
  // if interrupted.
  virtual void send_frame(int peer, const FrameBytes& frame) = 0;
  // send() begins to send a piece, receive() begins to receive a piece, and both return at once. The piece's memory
  // belongs to the wire until done() returns true for the transfer. If `is_eager` is false, the data waits at the
  // sender until the peer has posted the receive. Both functions throw Broken.
  virtual Transfer send(const ConstPiece& piece, Tag tag) = 0;
  virtual Transfer receive(const Piece& piece, Tag tag) = 0;
  // Returns true if the transfer is done. When done() returns true, the wire forgets the transfer. A call of wait()
  // returns when any transfer ends. Throws Broken.
  virtual bool done(Transfer transfer) = 0;
  // Returns the peers of the oldest unfinished transfer, and of all other unfinished transfers that have the oldest
  // transfer's tag. While a transfer of a collective is under way, awaited() returns no peers of messages.
  virtual std::vector<int> awaited() = 0;
  // Sets the doorbell on which wait() sleeps; a wire that sleeps without a doorbell ignores the call. Both wake() and
  // code outside of the wire may ring the doorbell. Call sleep_on() before open(). The doorbell must outlive the wire.
  virtual void sleep_on(Doorbell&) {}
  // Blocks until an event or the deadline. The events that end wait() are a call of the listener, a call of wake() and
  // the end of a transfer. An event since the last wait() makes wait() return at once.
  virtual void wait(const Deadline& deadline) = 0;
  virtual void wake() = 0;
  // Returns how long a thread with nothing to do polls before it sleeps, which is about the time that a wake-up takes.
  // Returns 0 if polling would take another thread's core, or if the wire doesn't implement poll() and sleep() and so
  // allows only one thread.
  virtual std::chrono::nanoseconds patience() const { return {}; }
  // Returns true if wait() would return at once.
  virtual bool poll() { return false; }
  // Blocks until poll() may return true.
  virtual void sleep() {}
  // Makes a blocked call of the wire, and each later call except close(), return early or throw Broken. The engine may
  // call interrupt() even before open().
  virtual void interrupt() = 0;
  // Gives up all unfinished transfers. REQUIRES: interrupt() was called. After cancel_transfers() has returned, the
  // library doesn't access the memory of any piece.
  virtual void cancel_transfers() = 0;
  // Ends all connections as soon as all sent data has left this rank, or at the deadline. The wire doesn't call the
  // listener after close() has returned.
  virtual void close(const Deadline& deadline) = 0;
};

// Returns the result of Wire::awaited() for the transfers in `posted`, a map from the number of each transfer to the
// transfer. Each transfer in `posted` has the members `peer`, `tag` and `is_through`. The member `is_through` is true
// if the transfer is done.
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

// Returns when the transfer is done. A call of complete() may consume an event that would otherwise end a later wait(),
// so the caller must check for other events before calling wait(). Throws Broken.
void complete(Wire& wire, Transfer transfer);
// Sends and receives all given pieces. Returns when all received pieces have arrived and all sent pieces have left this
// rank's memory. REQUIRES: each peer calls exchange() with pieces that match this rank's pieces, in the same order.
// Throws Broken.
void exchange(Wire& wire, std::span<const ConstPiece> sends, std::span<const Piece> recvs);

}  // namespace lockstep::wire
