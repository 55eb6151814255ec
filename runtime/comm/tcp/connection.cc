// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/tcp/connection.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <system_error>
#include <utility>

#include "runtime/comm/transfer.h"

namespace lockstep::tcp {
namespace {

// Bytes of one read() or write(), at most, so that the other peers get their turn.
constexpr std::size_t kMostAtOnce = 4 << 20;

std::uint64_t read_number(std::span<const std::byte> bytes) {
  std::uint64_t number = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) number = number << 8 | std::to_integer<std::uint64_t>(bytes[i]);
  return number;
}

void write_number(std::uint64_t number, std::span<std::byte> bytes) {
  for (std::byte& byte : bytes) {
    byte = static_cast<std::byte>(number);
    number >>= 8;
  }
}

[[noreturn]] void refuse(const char* why) {
  throw wire::Broken(fmt::format(
      "the received bytes are not a message of this version: {}; run one version of lockstep on every host", why));
}

[[noreturn]] void throw_unlike(std::size_t sent, std::size_t received) {
  throw wire::Broken(fmt::format("one rank sends {} bytes where the other receives {}", sent, received));
}

wire::Tag tag_of(std::uint8_t kind, std::uint64_t number) { return {static_cast<wire::Tag::Kind>(kind), number}; }

}  // namespace

std::array<std::byte, Connection::kHeaderBytes> Connection::written(const Header& header) {
  std::array<std::byte, kHeaderBytes> bytes{};
  const std::span all(bytes);
  bytes[0] = static_cast<std::byte>(header.what);
  bytes[1] = static_cast<std::byte>(header.kind);
  write_number(header.bytes, all.subspan(4, 4));
  write_number(header.number, all.subspan(8, 8));
  return bytes;
}

Connection::Header Connection::header_of(What what, wire::Tag tag, std::size_t bytes) const {
  return {.what = what,
          .kind = static_cast<std::uint8_t>(tag.kind),
          .bytes = static_cast<std::uint32_t>(bytes),
          .number = tag.number};
}

void Connection::put(const Header& header, std::span<const std::byte> payload) {
  if (is_over_) return;
  const auto bytes = written(header);
  control_.insert(control_.end(), bytes.begin(), bytes.end());
  control_.insert(control_.end(), payload.begin(), payload.end());
}

void Connection::send_frame(std::span<const std::byte> frame) {
  put({.what = What::frame, .bytes = static_cast<std::uint32_t>(frame.size())}, frame);
}

void Connection::send(const wire::ConstPiece& piece, wire::Tag tag, wire::Transfer transfer) {
  if (is_eager(piece)) return ready_sends_.push_back({transfer, tag, piece.data, piece.bytes});
  const auto sending = waiting_sends_.insert(waiting_sends_.end(), {transfer, tag, piece.data, piece.bytes});
  const auto ready = std::find_if(readies_.begin(), readies_.end(), [&](const Ready& one) { return one.tag == tag; });
  if (ready == readies_.end()) return;
  match(sending, *ready);
  readies_.erase(ready);
}

void Connection::receive(const wire::Piece& piece, wire::Tag tag, wire::Transfer transfer) {
  const auto early = std::ranges::find_if(early_, [&](const Early& one) { return one.receiving.tag == tag; });
  if (early != early_.end()) return take_early(early, piece, transfer);
  receives_.push_back({transfer, tag, piece.data, piece.bytes, is_eager(piece)});
  if (is_eager(piece)) return;
  std::array<std::byte, 8> size;
  write_number(piece.bytes, size);
  put(header_of(What::ready, tag, size.size()), size);
}

void Connection::take_early(std::list<Early>::iterator early, const wire::Piece& piece, wire::Transfer transfer) {
  if (early->bytes.size() != piece.bytes) throw_unlike(early->bytes.size(), piece.bytes);
  const std::size_t left = early->receiving.left;
  comm::copy_bytes(piece.data, early->bytes.data(), piece.bytes - left);
  if (left == 0) {
    listener_.on_through(transfer);
  } else {
    receives_.push_back({transfer, early->receiving.tag, piece.data + piece.bytes - left, left, true});
    if (target_ == &early->receiving) target_ = &receives_.back();
  }
  early_.erase(early);
}

void Connection::match(std::list<Sending>::iterator sending, const Ready& ready) {
  if (sending->left != ready.bytes) throw_unlike(sending->left, ready.bytes);
  ready_sends_.push_back(*sending);
  waiting_sends_.erase(sending);
}

void Connection::begin_chunk() {
  const Sending& next = ready_sends_.front();
  const std::size_t bytes = std::min(next.left, kMostChunk);
  chunk_ = Chunk{.header = written(header_of(What::data, next.tag, bytes)), .data = next.data, .left = bytes};
}

void Connection::write() {
  if (!is_attached()) return;
  for (std::size_t total = 0; total < kMostAtOnce && !is_over_;) {
    if (!chunk_ && !ready_sends_.empty()) begin_chunk();
    std::array<iovec, 3> parts;
    std::size_t count = 0;
    const auto add = [&](const std::byte* data, std::size_t bytes) {
      if (bytes > 0) parts[count++] = {const_cast<std::byte*>(data), bytes};
    };
    const auto add_control = [&] { add(control_.data() + control_begin_, control_.size() - control_begin_); };
    // A chunk that has begun ends first: its header has promised its bytes, so nothing may come between. Between chunks
    // control goes first: a ready or a frame must not wait behind megabytes of data.
    const bool chunk_has_begun = chunk_ && chunk_->header_sent > 0;
    if (!chunk_has_begun) add_control();
    if (chunk_) {
      add(chunk_->header.data() + chunk_->header_sent, kHeaderBytes - chunk_->header_sent);
      add(chunk_->data, chunk_->left);
    }
    if (chunk_has_begun) add_control();
    if (count == 0) return;
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (sent < 0) {
      error_ = errno;  // the socket says it once
      return shut_down();
    }
    note_sent(static_cast<std::size_t>(sent));
    total += static_cast<std::size_t>(sent);
  }
}

void Connection::note_sent(std::size_t bytes) {
  const auto take = [&](std::size_t most) {
    const std::size_t taken = std::min(bytes, most);
    bytes -= taken;
    return taken;
  };
  const auto take_control = [&] {
    control_begin_ += take(control_.size() - control_begin_);
    if (control_begin_ < control_.size()) return;
    control_.clear();
    control_begin_ = 0;
  };
  if (!chunk_ || chunk_->header_sent == 0) take_control();
  if (chunk_ && bytes > 0) {
    chunk_->header_sent += take(kHeaderBytes - chunk_->header_sent);
    const std::size_t data = take(chunk_->left);
    chunk_->data += data;
    chunk_->left -= data;
    if (chunk_->left == 0 && chunk_->header_sent == kHeaderBytes) end_chunk();
  }
  take_control();
}

void Connection::end_chunk() {
  chunk_.reset();
  if (ready_sends_.empty()) return;  // it was given up
  Sending& sending = ready_sends_.front();
  const std::size_t bytes = std::min(sending.left, kMostChunk);
  sending.data += bytes;
  sending.left -= bytes;
  if (sending.left > 0) return;
  const wire::Transfer transfer = sending.transfer;
  ready_sends_.pop_front();
  listener_.on_through(transfer);
}

void Connection::read() {
  for (std::size_t total = 0; total < kMostAtOnce;) {
    // Data goes straight to its place, and what follows it to the stage, which is empty then.
    const bool is_direct = message_ && target_ != nullptr && message_left_ > 0;
    if (stage_begin_ == stage_end_) stage_begin_ = stage_end_ = 0;
    std::array<iovec, 2> parts;
    std::size_t count = 0;
    if (is_direct) parts[count++] = {target_->data, message_left_};
    parts[count++] = {stage_.data() + stage_end_, stage_.size() - stage_end_};
    const std::size_t room = (is_direct ? message_left_ : 0) + stage_.size() - stage_end_;
    const ssize_t got = ::readv(socket_.get(), parts.data(), static_cast<int>(count));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got < 0) throw ConnectionEnded(std::generic_category().message(errno));
    if (got == 0 && error_ != 0) throw ConnectionEnded(std::generic_category().message(error_));
    if (got == 0) throw ConnectionEnded("the other end closed the connection");
    std::size_t bytes = static_cast<std::size_t>(got);
    total += bytes;
    // The kernel gave less than there was room for, so it has no more for now: another readv() would say EAGAIN.
    const bool is_all = bytes < room;
    if (is_direct) {
      const std::size_t data = std::min(bytes, message_left_);
      target_->data += data;
      target_->left -= data;
      message_left_ -= data;
      bytes -= data;
      if (message_left_ == 0) end_data();
    }
    stage_end_ += bytes;
    take_messages();
    if (is_all) return;
  }
}

void Connection::take_messages() {
  for (;;) {
    std::span<const std::byte> there(stage_.data() + stage_begin_, stage_end_ - stage_begin_);
    if (!message_) {
      if (there.size() < kHeaderBytes) break;
      begin_message({.what = static_cast<What>(there[0]),
                     .kind = std::to_integer<std::uint8_t>(there[1]),
                     .zero = static_cast<std::uint16_t>(read_number(there.subspan(2, 2))),
                     .bytes = static_cast<std::uint32_t>(read_number(there.subspan(4, 4))),
                     .number = read_number(there.subspan(8, 8))});
      stage_begin_ += kHeaderBytes;
      if (message_->what == What::data && message_left_ == 0) end_data();
      continue;
    }
    if (message_->what == What::data) {
      const std::size_t data = std::min(there.size(), message_left_);
      if (data == 0) break;
      if (target_ != nullptr) {
        std::memcpy(target_->data, there.data(), data);
        target_->data += data;
        target_->left -= data;
      }
      stage_begin_ += data;
      message_left_ -= data;
      if (message_left_ == 0) end_data();
      continue;
    }
    const Header header = *message_;
    if (there.size() < header.bytes) break;
    message_.reset();
    stage_begin_ += header.bytes;
    if (header.what == What::frame) {
      listener_.on_frame(there.first(header.bytes));
    } else {
      take_ready(header, there.first(header.bytes));
    }
  }
  // Room for the rest of what is there in part.
  if (stage_begin_ == 0) return;
  std::memmove(stage_.data(), stage_.data() + stage_begin_, stage_end_ - stage_begin_);
  stage_end_ -= std::exchange(stage_begin_, 0);
}

void Connection::begin_message(const Header& header) {
  message_ = header;
  switch (header.what) {
    case What::frame:
      if (header.bytes > wire::kFrameBytes) refuse("a frame that is too long");
      return;
    case What::ready:
      if (header.bytes != 8) refuse("a size of another size");
      return;
    case What::data:
      if (header.bytes > kMostChunk) refuse("too much data");
      message_left_ = header.bytes;
      target_ = target_of(header);
      return;
  }
  refuse("an unknown kind");
}

Connection::Receiving* Connection::target_of(const Header& header) {
  const wire::Tag tag = tag_of(header.kind, header.number);
  const auto found = std::ranges::find(receives_, tag, &Receiving::tag);
  if (found != receives_.end()) {
    // An eager piece is one chunk.
    if (found->is_eager && header.bytes != found->left) throw_unlike(header.bytes, found->left);
    if (header.bytes > found->left) refuse("too much data");
    return &*found;
  }
  if (has_given_up_) return nullptr;
  if (tag.kind != wire::Tag::Kind::segment || early_.size() == kMostEarly) {
    refuse("data that nobody asked for");
  }
  Early& early = early_.emplace_back();
  early.bytes.resize(header.bytes);
  early.receiving = {.tag = tag, .data = early.bytes.data(), .left = early.bytes.size(), .is_early = true};
  return &early.receiving;
}

void Connection::take_ready(const Header& header, std::span<const std::byte> payload) {
  if (has_given_up_) return;
  const Ready ready{tag_of(header.kind, header.number), static_cast<std::size_t>(read_number(payload))};
  const auto sending = std::ranges::find(waiting_sends_, ready.tag, &Sending::tag);
  if (sending == waiting_sends_.end()) return readies_.push_back(ready);
  match(sending, ready);
}

void Connection::end_data() {
  message_.reset();
  Receiving* const target = std::exchange(target_, nullptr);
  if (target == nullptr || target->left > 0 || target->is_early) return;
  const wire::Transfer transfer = target->transfer;
  receives_.remove_if([&](const Receiving& one) { return &one == target; });
  listener_.on_through(transfer);
}

// A chunk that has begun ends with the bytes that it would have had: the peer may need no more of the transfer.
void Connection::cancel_transfers() {
  has_given_up_ = true;
  if (chunk_ && chunk_->header_sent > 0) {
    given_up_.assign(chunk_->data, chunk_->data + chunk_->left);
    chunk_->data = given_up_.data();
  } else {
    chunk_.reset();
  }
  waiting_sends_.clear();
  ready_sends_.clear();
  readies_.clear();
  receives_.clear();
  early_.clear();
  target_ = nullptr;
}

void Connection::shut_down() {
  is_over_ = true;
  control_.clear();
  control_begin_ = 0;
  chunk_.reset();
  ready_sends_.clear();
  waiting_sends_.clear();
  if (is_attached()) ::shutdown(socket_.get(), SHUT_WR);
}

}  // namespace lockstep::tcp
