// SPDX-License-Identifier: Apache-2.0
// Wire is the contract of a transport between ranks, on which a process group can be built.
//
// TCP and Open MPI each implement a Wire. A transport carries bytes; the engine decides which bytes are sent to which
// rank, and uses the received bytes. So every backend across hosts gives the same bits, for every element type, and
// reports failures in the same words.
//
// Frames are small and arrive unasked, in order per peer. Bulk data goes straight from memory to memory, between ranks
// that have agreed on the transfer by frames. A rank posts a transfer and polls until the transfer is done, so many
// transfers can be under way at once.
//
// Threads: the group's communication thread calls all functions except wake(), interrupt(), awaited(), opening() and
//   sleep(), which any thread may call. If patience() is not 0, other threads may take the communication thread's
//   place, one thread at a time. The wire calls the listener from any thread, one call at a time per peer.
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
  // Called when the connection to `peer` is gone. `how` is the library's message.
  virtual void on_lost(int peer, const std::string& how) = 0;
  // Called when the wire can't continue, whichever rank is to blame.
  virtual void on_broken(const std::string& how) = 0;
  // Called when the bell of sleep_on() was rung.
  virtual void on_bell() {}

 protected:
  ~Listener() = default;
};

// A piece is memory that is sent to a peer or received from a peer. Memory that is sent is only read.
template <typename Byte>
struct BasicPiece {
  int peer = 0;
  Byte* data = nullptr;
  std::size_t bytes = 0;
  // True if a small piece (512 KiB) may be sent before its receive is posted. REQUIRES: the piece belongs to a segment
  // of which the two ranks send each other equally many bytes, so that neither rank gets ahead. Both ends pass equal
  // values of `is_eager`.
  bool is_eager = false;
};
using Piece = BasicPiece<std::byte>;
using ConstPiece = BasicPiece<const std::byte>;

// Both ends match pieces by their tags. A send meets the receive that its peer has posted with the same tag. If several
// pieces have the same tag, the first send meets the first receive.
struct Tag {
  enum class Kind : std::uint8_t { collective, segment, message };
  Kind kind = Kind::collective;
  std::uint64_t number = 0;

  bool operator==(const Tag&) const = default;
  // Returns whether a rank that waits for this tag and for `other` is held up by this tag. A message that a peer has
  // still to deliver holds up no collective.
  bool goes_before(const Tag& other) const { return kind != Kind::message && other.kind == Kind::message; }
};

// A Transfer is the number of a posted transfer. Later transfers have larger numbers.
using Transfer = std::uint64_t;

// Broken says that a transfer was cut short, by interrupt() or because a connection broke.
class Broken : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Wire {
 public:
  virtual ~Wire() = default;

  // Returns the transport's name in messages: "TCP".
  virtual std::string_view name() const = 0;
  // Connects each rank with the ranks that it needs at once. A frame or transfer between two other ranks connects these
  // two ranks later. All ranks call open(), which blocks. Throws Timeout, PeerLost, Mismatch or BackendUnavailable.
  virtual void open(Listener& listener, const Deadline& deadline) = 0;
  // Returns the work that open() waits for: "MPI_Init, which waits for every rank".
  virtual std::string opening() const = 0;
  // Returns false if interrupt() can't end open(), because the library has no deadline in that call. open() is then
  // left to itself.
  virtual bool can_interrupt_open() const { return true; }
  // Returns false while there is no connection to `peer`. Frames and transfers make a connection.
  virtual bool is_connected(int) const { return true; }
  // Sends a frame, without waiting for the peer. Does nothing if the peer is lost. Throws Broken if interrupted.
  virtual void send_frame(int peer, const FrameBytes& frame) = 0;
  // Begin to send a piece to its peer, or to receive a piece from its peer, and return at once. The piece's memory
  // belongs to the wire until done() returns true. Data that is not eager waits at the sender until its receive is
  // posted. Throw Broken.
  virtual Transfer send(const ConstPiece& piece, Tag tag) = 0;
  virtual Transfer receive(const Piece& piece, Tag tag) = 0;
  // Returns true if the transfer is done; the wire then forgets the transfer. wait() ends when a transfer is done.
  // Throws Broken.
  virtual bool done(Transfer transfer) = 0;
  // Returns the peers of the oldest unfinished transfer, and of all transfers with the same tag. Returns peers of
  // messages only if no other transfer is under way.
  virtual std::vector<int> awaited() = 0;
  // Sets the bell that wait() sleeps on, for a wire that uses a bell. wake() rings the bell, and other code may ring
  // the bell too. Call sleep_on() before open(). The bell must outlive the wire.
  virtual void sleep_on(Doorbell&) {}
  // Blocks until the deadline, or until the listener or wake() was called or a transfer is done since the last wait().
  virtual void wait(const Deadline& deadline) = 0;
  virtual void wake() = 0;
  // Returns the time that a thread with nothing to do polls before it sleeps: about the time that the thread needs to
  // wake up. Returns 0 if polling would take another thread's core, or if the wire has only wait(), for one thread.
  virtual std::chrono::nanoseconds patience() const { return {}; }
  // Returns true if wait() would have returned.
  virtual bool poll() { return false; }
  // Returns when poll() may return true.
  virtual void sleep() {}
  // Ends the call that blocks, and each later call except close(). interrupt() may come before open().
  virtual void interrupt() = 0;
  // Gives up the unfinished transfers, after interrupt(). When cancel_transfers() returns, the library accesses no
  // Piece any more.
  virtual void cancel_transfers() = 0;
  // Ends all connections, after all sent data is out, or at the deadline. The listener is not called any more after
  // close() returns.
  virtual void close(const Deadline& deadline) = 0;
};

// Computes awaited() from the posted transfers by their numbers. Each transfer has its peer, its tag, and `is_through`,
// which is true if the transfer is done.
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

// Returns when the transfer is done. A caller that waits for other events too must look for them after complete(),
// because complete() may have used up an event that would have ended a wait(). Throws Broken.
void complete(Wire& wire, Transfer transfer);
// Moves all pieces. Returns when all received pieces have arrived and all sent pieces are out of this rank's memory.
// The peers call exchange() with pieces that match, in the same order. Throws Broken.
void exchange(Wire& wire, std::span<const ConstPiece> sends, std::span<const Piece> recvs);

}  // namespace lockstep::wire
