// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/wire/p2p_queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/comm/transfer.h"

namespace lockstep::wire {
namespace {

Tag tag_of(const WireP2pOp& p2p) { return {Tag::Kind::message, p2p.number}; }

Frame frame_about(FrameKind kind, const WireP2pOp& p2p) {
  Frame frame;
  frame.kind = kind;
  frame.number = p2p.number;
  frame.record.dtype = p2p.buffer.dtype;
  frame.record.count = p2p.buffer.count;
  frame.record.root = p2p.tag;
  return frame;
}

}  // namespace

P2pQueue::P2pQueue(const rendezvous::Roster& roster, int rank)
    : roster_(roster), rank_(rank), last_sent_(roster.size()), posts_(roster.size()) {}

std::shared_ptr<WireP2pOp> P2pQueue::start(WireP2pOp p2p) {
  auto started = std::make_shared<WireP2pOp>(std::move(p2p));
  if (started->is_send) {
    started->number = ++last_sent_[static_cast<std::size_t>(started->peer)];
    sends_.push_back(started);
    if (started->peer == rank_) {
      posts_[static_cast<std::size_t>(rank_)].push_back(
          {started->number, started->tag, started->buffer.dtype, started->buffer.count, {}, started});
    } else {
      actions_.push_back({P2pAction::What::post, started});
    }
  } else {
    recvs_.push_back(started);
  }
  match();
  return started;
}

void P2pQueue::on_frame(int peer, const Frame& frame) {
  if (frame.kind == FrameKind::post) {
    posts_[static_cast<std::size_t>(peer)].push_back({frame.number,
                                                      frame.record.root,
                                                      frame.record.dtype,
                                                      frame.record.count,
                                                      {frame.payload.begin(), frame.payload.end()},
                                                      nullptr});
    return match();
  }
  if (frame.kind == FrameKind::delivered) {
    const auto found = std::find_if(recvs_.begin(), recvs_.end(), [&](const std::shared_ptr<WireP2pOp>& p2p) {
      return p2p->peer == peer && p2p->number == frame.number;
    });
    if (found != recvs_.end()) actions_.push_back({P2pAction::What::finish, *found});
    return;
  }
  const auto p2p = find_send(peer, frame.number);
  if (p2p == nullptr) return;
  if (frame.kind == FrameKind::taken) finish(*p2p);
  if (frame.kind == FrameKind::accept) actions_.push_back({P2pAction::What::deliver, p2p});
}

std::shared_ptr<WireP2pOp> P2pQueue::find_send(int peer, std::uint64_t number) const {
  const auto found = std::ranges::find_if(
      sends_, [&](const std::shared_ptr<WireP2pOp>& p2p) { return p2p->peer == peer && p2p->number == number; });
  return found == sends_.end() ? nullptr : *found;
}

void P2pQueue::match() {
  const auto all = recvs_;  // a copy, because take() may remove operations from recvs_
  for (const auto& recv : all) {
    if (recv->number != 0) continue;
    auto& posts = posts_[static_cast<std::size_t>(recv->peer)];
    const auto found = std::ranges::find(posts, recv->tag, &Post::tag);
    if (found == posts.end()) continue;
    Post post = std::move(*found);
    posts.erase(found);
    take(recv, std::move(post));
  }
}

void P2pQueue::take(const std::shared_ptr<WireP2pOp>& p2p, Post post) {
  p2p->number = post.number;
  if (post.count != p2p->buffer.count || post.dtype != p2p->buffer.dtype) {
    if (mismatch_) return;
    mismatch_ = comm::describe_mismatch(*p2p, who(rank_), who(p2p->peer), post.count, post.dtype);
    return;
  }
  if (post.local != nullptr) {
    comm::copy_bytes(p2p->target, post.local->buffer.data, p2p->buffer.bytes());
    finish(*post.local);
    return finish(*p2p);
  }
  if (p2p->buffer.bytes() <= kInlineBytes && post.payload.size() != p2p->buffer.bytes()) {
    mismatch_ = fmt::format("{}: {} sent less than it said; run one version of lockstep on every host", p2p->describe(),
                            who(p2p->peer));
    return;
  }
  if (p2p->buffer.bytes() > kInlineBytes) return actions_.push_back({P2pAction::What::accept, p2p});
  actions_.push_back({P2pAction::What::take, p2p, std::move(post.payload)});
}

void P2pQueue::finish(WireP2pOp& p2p) {
  p2p.done = true;
  (p2p.is_send ? sends_ : recvs_).remove_if([&](const std::shared_ptr<WireP2pOp>& other) {
    return other.get() == &p2p;
  });
}

std::deque<P2pAction> P2pQueue::take_actions() {
  for (const P2pAction& action : actions_) {
    if (action.what == P2pAction::What::accept || action.what == P2pAction::What::deliver) action.p2p->under_way = true;
  }
  return std::exchange(actions_, {});
}

bool P2pQueue::run(const P2pAction& action, Wire& wire) {
  WireP2pOp& p2p = *action.p2p;
  const auto tell = [&](const Frame& frame) { wire.send_frame(p2p.peer, write_frame(frame)); };
  switch (action.what) {
    case P2pAction::What::post: {
      Frame frame = frame_about(FrameKind::post, p2p);
      if (p2p.buffer.bytes() <= kInlineBytes) {
        frame.payload = {static_cast<const std::byte*>(p2p.buffer.data), p2p.buffer.bytes()};
      }
      tell(frame);
      return false;
    }
    case P2pAction::What::take:
      comm::copy_bytes(p2p.target, action.payload.data(), p2p.buffer.bytes());
      tell(frame_about(FrameKind::taken, p2p));
      return true;
    case P2pAction::What::accept:
      p2p.transfer = wire.receive({p2p.peer, static_cast<std::byte*>(p2p.target), p2p.buffer.bytes()}, tag_of(p2p));
      tell(frame_about(FrameKind::accept, p2p));
      return false;
    case P2pAction::What::deliver:
      p2p.transfer =
          wire.send({p2p.peer, static_cast<const std::byte*>(p2p.buffer.data), p2p.buffer.bytes()}, tag_of(p2p));
      complete(wire, p2p.transfer);
      tell(frame_about(FrameKind::delivered, p2p));
      return true;
    case P2pAction::What::finish: complete(wire, p2p.transfer); return true;
  }
  return false;
}

std::size_t P2pQueue::owed() const {
  const auto delivered_to = std::count_if(recvs_.begin(), recvs_.end(), [](const std::shared_ptr<WireP2pOp>& recv) {
    return recv->number != 0 && recv->buffer.bytes() > kInlineBytes;
  });
  return sends_.size() + static_cast<std::size_t>(delivered_to);
}

void P2pQueue::refuse_posts() {
  recvs_.remove_if([](const std::shared_ptr<WireP2pOp>& recv) { return recv->number == 0; });
}

std::shared_ptr<WireP2pOp> P2pQueue::waiting_for(int peer) const {
  // If the peer posted a message before the peer's goodbye, the message's recv has a number above 0 and still gets the
  // data. Only recvs with number 0 wait in vain for a peer that has left.
  for (const auto& p2p : recvs_) {
    if (p2p->peer == peer && p2p->number == 0) return p2p;
  }
  for (const auto& p2p : sends_) {
    if (p2p->peer == peer) return p2p;
  }
  return nullptr;
}

std::string P2pQueue::progress_of(const WireP2pOp& p2p) const {
  if (p2p.under_way) return fmt::format("{} has started the other half, and its bytes are on their way", who(p2p.peer));
  if (p2p.is_send) return fmt::format("{} has not received it", who(p2p.peer));
  return fmt::format("{} has not started the other half", who(p2p.peer));
}

}  // namespace lockstep::wire
