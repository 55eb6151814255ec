// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/shm/p2p_queue.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/comm/failure/messages.h"
#include "runtime/comm/transfer.h"

namespace lockstep::shm {
ShmP2pQueue::ShmP2pQueue(Session& session, ArenaTable& arenas)
    : session_(session),
      arenas_(arenas),
      last_sent_(static_cast<std::size_t>(session.size())),
      incoming_(static_cast<std::size_t>(session.size())) {}

std::shared_ptr<ShmP2pOp> ShmP2pQueue::start(ShmP2pOp p2p) {
  auto started = std::make_shared<ShmP2pOp>(std::move(p2p));
  if (started->is_send) {
    started->number = ++last_sent_[static_cast<std::size_t>(started->peer)];
    sends_.push_back(started);
  } else {
    recvs_.push_back(started);
  }
  push();
  return started;
}

void ShmP2pQueue::announce() { session_.post(&RankWords::messages, ++events_); }

void ShmP2pQueue::push() {
  const auto is_done = [](const std::shared_ptr<ShmP2pOp>& p2p) { return p2p->done; };
  for (const auto& p2p : sends_) push_send(*p2p);
  // All look before any matches: of two recvs with one tag the later must not find what the earlier has just missed.
  for (const auto& p2p : recvs_) {
    if (p2p->number == 0) look_for_new(p2p->peer);
  }
  for (const auto& p2p : recvs_) push_recv(p2p);
  for (const auto& p2p : sends_) {
    if (p2p->peer == session_.rank()) push_send(*p2p);  // a message to itself is taken only now
  }
  sends_.remove_if(is_done);
  recvs_.remove_if(is_done);
}

bool ShmP2pQueue::waits_for_others_than(int peer) const {
  const auto is_other = [peer](const std::shared_ptr<ShmP2pOp>& p2p) { return p2p->peer != peer; };
  return std::any_of(sends_.begin(), sends_.end(), is_other) || std::any_of(recvs_.begin(), recvs_.end(), is_other);
}

std::string ShmP2pQueue::progress_of(const ShmP2pOp& p2p) const {
  const std::string peer = session_.who(p2p.peer);
  if (p2p.is_send) {
    if (!p2p.posted) return fmt::format("{} has not taken the {} messages before it", peer, kMessages);
    const MessageSlot& slot = message(session_.rank(), p2p.peer, p2p.number);
    if (slot.accepted.load(std::memory_order_acquire) != p2p.number) {
      return fmt::format("{} has not started to receive it", peer);
    }
  } else {
    if (p2p.number == 0) return fmt::format("{} has not started the other half", peer);
    if (!p2p.posted) return fmt::format("{} has sent it, and an earlier one that is not finished yet", peer);
  }
  return fmt::format(
      "{} has started the other half, and {} of {} chunks are done; it must call its group again to move the rest",
      peer, p2p.chunks, chunk_count(p2p.buffer));
}

void ShmP2pQueue::check_peer(const ShmP2pOp& p2p) {
  if (p2p.done || !session_.has_left(p2p.peer)) return;
  push();
  if (p2p.done) return;
  session_.fail(Cause::Kind::left, p2p.peer,
                comm::left_unanswered_text(session_.who(p2p.peer), session_.left_after(p2p.peer),
                                           session_.who(session_.rank()), p2p.describe()));
}

std::size_t ShmP2pQueue::chunk_count(const ConstBufferView& buffer) const {
  const std::size_t window = session_.control().channel_window_bytes();
  return (buffer.bytes() + window - 1) / window;
}

void ShmP2pQueue::push_send(ShmP2pOp& p2p) {
  if (p2p.done) return;
  MessageSlot& slot = message(session_.rank(), p2p.peer, p2p.number);
  if (!p2p.posted) {
    // The slot's message before this one must have been taken.
    const std::uint64_t previous = p2p.number > kMessages ? p2p.number - kMessages : 0;
    if (slot.taken.load(std::memory_order_acquire) < previous) return;
    slot.staged.store(0, std::memory_order_relaxed);
    slot.count = p2p.buffer.count;
    slot.dtype = p2p.buffer.dtype;
    slot.tag = p2p.tag;
    slot.source = {};
    if (p2p.buffer.bytes() <= kMessageInlineBytes) {
      comm::copy_bytes(slot.payload.data(), p2p.buffer.data, p2p.buffer.bytes());
    } else {
      slot.source = arenas_.find(p2p.buffer);
    }
    // Last, and released: a receiver that reads the number reads the whole description.
    slot.posted.store(p2p.number, std::memory_order_release);
    p2p.posted = true;
    announce();
  }
  if (slot.accepted.load(std::memory_order_acquire) == p2p.number) move_out(p2p);
  p2p.done = slot.taken.load(std::memory_order_acquire) >= p2p.number;
}

void ShmP2pQueue::move_out(ShmP2pOp& p2p) {
  MessageSlot& slot = message(session_.rank(), p2p.peer, p2p.number);
  const ControlBlock& control = session_.control();
  const std::size_t window = control.channel_window_bytes();
  while (p2p.chunks < chunk_count(p2p.buffer)) {
    // The window has two halves: the chunk before the last must be drained before its half is filled again.
    if (p2p.chunks >= 2 && slot.drained.load(std::memory_order_acquire) < p2p.chunks - 1) return;
    const std::size_t begin = p2p.chunks * window;
    comm::copy_bytes(control.channel_window(session_.rank(), p2p.peer, p2p.chunks),
                     static_cast<const std::byte*>(p2p.buffer.data) + begin,
                     std::min(window, p2p.buffer.bytes() - begin));
    slot.staged.store(++p2p.chunks, std::memory_order_release);
    announce();
  }
}

void ShmP2pQueue::look_for_new(int sender) {
  Incoming& incoming = incoming_[static_cast<std::size_t>(sender)];
  for (;;) {
    const std::uint64_t next = incoming.last_seen + 1;
    const MessageSlot& slot = message(sender, session_.rank(), next);
    if (slot.posted.load(std::memory_order_acquire) != next) return;
    incoming.unmatched.push_back({next, slot.tag});
    incoming.last_seen = next;
  }
}

void ShmP2pQueue::match(ShmP2pOp& p2p) {
  Incoming& incoming = incoming_[static_cast<std::size_t>(p2p.peer)];
  const auto found = std::ranges::find(incoming.unmatched, p2p.tag, &Seen::tag);
  if (found == incoming.unmatched.end()) return;
  p2p.number = found->number;
  incoming.unmatched.erase(found);
  const MessageSlot& slot = message(p2p.peer, session_.rank(), p2p.number);
  if (slot.count != p2p.buffer.count || slot.dtype != p2p.buffer.dtype) {
    session_.fail(
        Cause::Kind::mismatch, -1,
        comm::describe_mismatch(p2p, session_.who(session_.rank()), session_.who(p2p.peer), slot.count, slot.dtype));
  }
}

void ShmP2pQueue::push_recv(const std::shared_ptr<ShmP2pOp>& p2p) {
  if (p2p->done) return;
  Incoming& incoming = incoming_[static_cast<std::size_t>(p2p->peer)];
  if (p2p->number == 0) {
    match(*p2p);
    if (p2p->number == 0) return;
  }
  MessageSlot& slot = message(p2p->peer, session_.rank(), p2p->number);
  if (p2p->posted) return move_in(*p2p);
  const bool beside = p2p->buffer.bytes() <= kMessageInlineBytes;
  // The sender has finished the allocate() that this rank is still in: its memory is read at a later push.
  if (slot.source.arena >= 0 && !arenas_.knows(slot.source)) return;
  if (beside || slot.source.arena >= 0) {
    comm::copy_bytes(p2p->target, beside ? slot.payload.data() : arenas_.address(p2p->peer, slot.source),
                     p2p->buffer.bytes());
    slot.taken.store(p2p->number, std::memory_order_release);
    p2p->done = true;
    return announce();
  }
  if (incoming.in_window != nullptr && !incoming.in_window->done) return;
  incoming.in_window = p2p;
  // Relaxed: the release of `accepted` publishes it, and the sender reads it only behind that.
  slot.drained.store(0, std::memory_order_relaxed);
  slot.accepted.store(p2p->number, std::memory_order_release);
  p2p->posted = true;
  announce();
  move_in(*p2p);
}

void ShmP2pQueue::move_in(ShmP2pOp& p2p) {
  MessageSlot& slot = message(p2p.peer, session_.rank(), p2p.number);
  const ControlBlock& control = session_.control();
  const std::size_t window = control.channel_window_bytes();
  while (p2p.chunks < slot.staged.load(std::memory_order_acquire)) {
    const std::size_t begin = p2p.chunks * window;
    comm::copy_bytes(static_cast<std::byte*>(p2p.target) + begin,
                     control.channel_window(p2p.peer, session_.rank(), p2p.chunks),
                     std::min(window, p2p.buffer.bytes() - begin));
    slot.drained.store(++p2p.chunks, std::memory_order_release);
    announce();
  }
  if (p2p.chunks < chunk_count(p2p.buffer)) return;
  slot.taken.store(p2p.number, std::memory_order_release);
  p2p.done = true;
  announce();
}

}  // namespace lockstep::shm
