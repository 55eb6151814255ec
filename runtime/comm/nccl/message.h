// Messages between two ranks, as NCCL sends and receives.
//
// NCCL knows no tags, and a send holds its stream up until the receiver has come. So the ranks first tell each other in
// their log what they want to send and receive: all read it in one order, so a sender and its receiver find the same
// pairs in the same order, and only pairs are launched, on a communicator and a stream of their own that no collective
// waits behind. What a rank sends to itself is a copy in that stream.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "runtime/comm/nccl/item.h"

namespace lockstep::nccl {

// One side of a message.
class Message final : public Item {
 public:
  Message(bool sends, const BufferView& view, int other, int of_tag)
      : is_send(sends), buffer(view), peer(other), tag(of_tag) {}

  // "send of 10 x float32 to rank 1 with tag 7".
  std::string describe() const override;
  void prepare(const Lane& lane) override { staged_.prepare(lane, buffer); }
  void launch(const Lane& lane) override;
  void follow_up(const Lane& lane) override;
  void land() override { staged_.land(); }
  bool is_for_host() const override { return !is_send && buffer.device.kind == DeviceKind::cpu && buffer.bytes() > 0; }
  int awaited_peer() const override { return peer; }

  const bool is_send;
  const BufferView buffer;
  const int peer;
  const int tag;
  std::int64_t number = 0;  // of this rank's messages, from 1

 private:
  Staged staged_;
};

// What a side says of itself in the log.
struct Posting {
  int sender = 0;
  int receiver = 0;
  bool is_send = false;
  std::int64_t tag = 0;
  DType dtype = DType::u8;
  std::int64_t count = 0;
  std::int64_t number = 0;  // of the message on its side
};

// A pair: the oldest send and the oldest recv of one sender, receiver and tag.
struct Pair {
  Posting send;
  Posting recv;
  bool fits() const { return send.dtype == recv.dtype && send.count == recv.count; }
};

// Finds the pairs. Pure.
class Matches {
 public:
  // The pair that this one completes, if it does.
  std::optional<Pair> add(const Posting& posting);

 private:
  struct Waiting {
    std::deque<Posting> sends;
    std::deque<Posting> recvs;
  };
  std::map<std::tuple<int, int, std::int64_t>, Waiting> waiting_;  // by sender, receiver, tag
};

}  // namespace lockstep::nccl
