// SPDX-License-Identifier: Apache-2.0
// The contract of a transport between ranks, on which a process group can be built.
//
// TCP and Open MPI each implement one. A transport carries bytes; this room decides what is sent, to which rank, and
// what is made of it. So every backend across hosts gives the same bits, for every element type, and fails in the same
// words.
//
// Frames are small and come unasked, in order per peer. Bulk data goes straight from memory to memory, between ranks
// that have agreed on it by frames: a transfer is posted, and polled until it is done, so many are under way at once.
//
// Threads: the group's communication thread calls everything except wake(), interrupt(), awaited(), opening() and
//   sleep(), which any thread may call. With patience() another thread may take the communication thread's place, one
//   at a time. The wire calls the listener from any thread, one call at a time per peer.
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
  // The connection to `peer` is gone. `how` is the library's message.
  virtual void on_lost(int peer, const std::string& how) = 0;
  // The wire can't continue, whichever rank is to blame.
  virtual void on_broken(const std::string& how) = 0;
  // The bell of sleep_on() was rung.
  virtual void on_bell() {}

 protected:
  ~Listener() = default;
};

// Memory that is sent to a peer, which is only read, or received from one.
template <typename Byte>
struct BasicPiece {
  int peer = 0;
  Byte* data = nullptr;
  std::size_t bytes = 0;
  // Whether a small piece (512 KiB) may be sent before its receive is posted: if it belongs to a segment of which the
  // two ranks send each other as much, so that neither gets ahead of the other. Both ends pass the same value.
  bool is_eager = false;
};
using Piece = BasicPiece<std::byte>;
using ConstPiece = BasicPiece<const std::byte>;

// The tag by which both ends match pieces. A send meets the receive that its peer has posted with the same tag; among
// several with one tag the first meets the first.
struct Tag {
  enum class Kind : std::uint8_t { collective, segment, message };
  Kind kind = Kind::collective;
  std::uint64_t number = 0;

  bool operator==(const Tag&) const = default;
  // Whether a rank that waits for this tag and for `other` is held up by this one: a message that its peer has still to
  // deliver holds up no collective.
  bool goes_before(const Tag& other) const { return kind != Kind::message && other.kind == Kind::message; }
};

// The number of a posted transfer; numbers grow.
using Transfer = std::uint64_t;

// A transfer was cut short: by interrupt(), or because a connection broke.
class Broken : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Wire {
 public:
  virtual ~Wire() = default;

  // The transport's name in messages: "TCP".
  virtual std::string_view name() const = 0;
  // Connects the ranks: each with those that it needs at once, and with another when there is something to send to it.
  // Collective; blocks. Throws Timeout, PeerLost, Mismatch or BackendUnavailable.
  virtual void open(Listener& listener, const Deadline& deadline) = 0;
  // The work that open() waits for: "MPI_Init, which waits for every rank".
  virtual std::string opening() const = 0;
  // False if interrupt() can't end open(), because the library knows no deadline there: it is then left to itself.
  virtual bool can_interrupt_open() const { return true; }
  // False while there is no connection to `peer`; frames and transfers make one.
  virtual bool is_connected(int) const { return true; }
  // Sends a frame, without waiting for the peer. Does nothing if the peer is lost. Throws Broken if interrupted.
  virtual void send_frame(int peer, const FrameBytes& frame) = 0;
  // Begin to send a piece to, or receive it from, its peer, and return at once. Its memory belongs to the wire until
  // done() returns true. Data whose receive is not posted waits at the sender, if it is not eager. Throw Broken.
  virtual Transfer send(const ConstPiece& piece, Tag tag) = 0;
  virtual Transfer receive(const Piece& piece, Tag tag) = 0;
  // True if the transfer is done: the wire has then forgotten it. wait() ends when a transfer is done. Throws Broken.
  virtual bool done(Transfer transfer) = 0;
  // The peers of the oldest transfer that is not done, and of all others with its tag; peers of messages only if
  // nothing else is under way. Any thread.
  virtual std::vector<int> awaited() = 0;
  // Sets the bell that wait() sleeps on, for a wire that uses one: wake() rings it, and so may others. Before open();
  // it outlives the wire.
  virtual void sleep_on(Doorbell&) {}
  // Blocks until, since the last wait(), the listener or wake() was called or a transfer is done, or until the
  // deadline.
  virtual void wait(const Deadline& deadline) = 0;
  virtual void wake() = 0;
  // The time that a thread with nothing to do polls before it sleeps: about the time that it needs to wake up; 0 if
  // polling would take another thread's core, and if the wire has only wait(), for one thread.
  virtual std::chrono::nanoseconds patience() const { return {}; }
  // True if wait() would have returned.
  virtual bool poll() { return false; }
  // Returns when poll() may return true.
  virtual void sleep() {}
  // Ends, for good, the call that blocks, and each later one, except close(). May come before open().
  virtual void interrupt() = 0;
  // Gives up the transfers that are not done, after interrupt(). The library accesses no Piece any more when it
  // returns.
  virtual void cancel_transfers() = 0;
  // Ends all connections, after all sent data is out, or at the deadline. The listener is not called any more after it
  // returns.
  virtual void close(const Deadline& deadline) = 0;
};

// awaited(), computed from the posted transfers by their numbers, each with its peer, its tag and whether it is done.
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

// Returns when the transfer is done. A caller that waits for more than transfers must look again after it: the call may
// have used up another event that would have ended a wait(). Throws Broken.
void complete(Wire& wire, Transfer transfer);
// Moves all pieces, and returns when all have arrived and all are out of this rank's memory. The peers call it with
// pieces that match, in the same order. Throws Broken.
void exchange(Wire& wire, std::span<const ConstPiece> sends, std::span<const Piece> recvs);

}  // namespace lockstep::wire
