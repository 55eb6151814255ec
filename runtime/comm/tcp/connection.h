// SPDX-License-Identifier: Apache-2.0
// The frames and transfers to and from one peer over one TCP connection, which may be made after they were posted.
//
// It is a stream of messages, each a header of 16 bytes and then as many as the header says:
//
//   frame  a frame of comm/wire/frame.h, as much of it as is used
//   ready  a receive of this tag is posted; its size, 8 bytes
//   data   the next bytes of the oldest receive of this tag that has room, kMostChunk at most
//
// Data goes out for a receive that is ready, so what comes has its place and never holds up what comes behind it; and
// in chunks, between which frames go. Transfers to a peer take turns in the order in which they could begin. An eager
// piece, which is small, waits for nothing, and goes to the side if it comes before its receive is posted.
//
// Threads: one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

#include "runtime/base/unique_fd.h"
#include "runtime/comm/wire/wire.h"

namespace lockstep::tcp {

// The peer closed its end, or its process or host is gone.
class ConnectionEnded : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Connection {
 public:
  static constexpr std::size_t kMostChunk = 512 << 10;
  static constexpr std::size_t kMostEager = kMostChunk;
  // Eager pieces that may lie at the side. An exchange of segments can have 8: two trips of kSegmentDepth segments.
  static constexpr std::size_t kMostEarly = 16;

  // The receiver of a connection's events, during write() and read(). It may not call the connection from there.
  class Listener {
   public:
    virtual void on_frame(std::span<const std::byte> frame) = 0;
    virtual void on_through(wire::Transfer transfer) = 0;

   protected:
    ~Listener() = default;
  };

  // `listener` outlives it. Without a socket it queues.
  explicit Connection(Listener& listener) : listener_(listener) {}
  Connection(UniqueFd socket, Listener& listener) : socket_(std::move(socket)), listener_(listener) {}

  // A connected, non-blocking socket; once. write() is to follow.
  void attach(UniqueFd socket) { socket_ = std::move(socket); }
  bool is_attached() const { return static_cast<bool>(socket_); }
  int fd() const { return socket_.get(); }
  // These queue; write() sends.
  void send_frame(std::span<const std::byte> frame);
  void send(const wire::ConstPiece& piece, wire::Tag tag, wire::Transfer transfer);
  void receive(const wire::Piece& piece, wire::Tag tag, wire::Transfer transfer);
  // Sends what the socket takes. Bytes for a peer that is gone are dropped: read() tells that it is gone, after the
  // last bytes that it has sent. Throws wire::Broken.
  void write();
  // True if there is more than the socket took.
  bool wants_to_write() const { return chunk_ || control_begin_ < control_.size() || !ready_sends_.empty(); }
  // Takes what has come. Throws ConnectionEnded, and wire::Broken if that is not a stream of this version.
  void read();
  // Gives up all transfers, and touches no Piece any more. Frames still go and come.
  void cancel_transfers();
  // Nothing more goes out; what comes is dropped.
  void shut_down();

 private:
  enum class What : std::uint8_t { frame = 1, ready, data };
  struct Header {
    What what = What::frame;
    std::uint8_t kind = 0;  // of the tag
    std::uint16_t zero = 0;
    std::uint32_t bytes = 0;
    std::uint64_t number = 0;  // of the tag
  };
  static constexpr std::size_t kHeaderBytes = 16;

  struct Sending {
    wire::Transfer transfer = 0;
    wire::Tag tag = {};
    const std::byte* data = nullptr;
    std::size_t left = 0;
  };
  struct Receiving {
    wire::Transfer transfer = 0;
    wire::Tag tag = {};
    std::byte* data = nullptr;
    std::size_t left = 0;
    bool is_eager = false;
    bool is_early = false;  // at the side
  };
  // An eager segment whose receive is not posted. It goes where a receive would have it go.
  struct Early {
    std::vector<std::byte> bytes;
    Receiving receiving;
  };
  struct Ready {
    wire::Tag tag;
    std::size_t bytes = 0;
  };
  // The part of the first of `ready_sends_` that is on its way.
  struct Chunk {
    std::array<std::byte, kHeaderBytes> header;
    std::size_t header_sent = 0;
    const std::byte* data = nullptr;
    std::size_t left = 0;
  };

  static bool is_eager(const auto& piece) { return piece.is_eager && piece.bytes <= kMostEager; }
  static std::array<std::byte, kHeaderBytes> written(const Header& header);
  Header header_of(What what, wire::Tag tag, std::size_t bytes) const;
  void put(const Header& header, std::span<const std::byte> payload);
  void begin_chunk();
  void note_sent(std::size_t bytes);
  void end_chunk();
  void match(std::list<Sending>::iterator sending, const Ready& ready);
  // Takes what lies in the stage.
  void take_messages();
  void begin_message(const Header& header);
  // Where the data of `header` is to go; null: nowhere, since it was given up.
  Receiving* target_of(const Header& header);
  void take_early(std::list<Early>::iterator early, const wire::Piece& piece, wire::Transfer transfer);
  void take_ready(const Header& header, std::span<const std::byte> payload);
  void end_data();

  UniqueFd socket_;
  Listener& listener_;

  // Out: frames and readies as bytes, of which the first `control_begin_` have gone.
  std::vector<std::byte> control_;
  std::size_t control_begin_ = 0;
  std::list<Sending> waiting_sends_;  // for a receive that is ready
  std::deque<Sending> ready_sends_;
  std::deque<Ready> readies_;  // whose sends are not posted
  std::optional<Chunk> chunk_;
  std::vector<std::byte> given_up_;  // the rest of a chunk of a transfer that was given up
  bool is_over_ = false;             // nothing goes out any more
  int error_ = 0;                    // errno of the write that failed

  // In.
  std::list<Receiving> receives_;
  std::list<Early> early_;
  std::optional<Header> message_;  // that has begun
  std::size_t message_left_ = 0;   // of data
  Receiving* target_ = nullptr;    // of data; null: a transfer that was given up
  bool has_given_up_ = false;
  std::array<std::byte, 4096> stage_;
  std::size_t stage_begin_ = 0;
  std::size_t stage_end_ = 0;
};

}  // namespace lockstep::tcp
