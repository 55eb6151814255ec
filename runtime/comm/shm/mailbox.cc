#include "runtime/comm/shm/mailbox.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "runtime/comm/failure/messages.h"

namespace lockstep::shm {
namespace {

void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

}  // namespace

Mailbox::Mailbox(Session& session, ArenaTable& arenas)
    : session_(session),
      arenas_(arenas),
      last_sent_(static_cast<std::size_t>(session.size())),
      incoming_(static_cast<std::size_t>(session.size())) {}

std::shared_ptr<Parcel> Mailbox::start(Parcel parcel) {
  auto started = std::make_shared<Parcel>(std::move(parcel));
  if (started->is_send) {
    started->number = ++last_sent_[static_cast<std::size_t>(started->peer)];
    sends_.push_back(started);
  } else {
    recvs_.push_back(started);
  }
  push();
  return started;
}

void Mailbox::announce() { session_.post(&RankWords::messages, ++events_); }

void Mailbox::push() {
  const auto is_done = [](const std::shared_ptr<Parcel>& parcel) { return parcel->done; };
  for (const auto& parcel : sends_) push_send(*parcel);
  // All look before any matches: of two recvs with one tag the later must not find what the earlier has just missed.
  for (const auto& parcel : recvs_) {
    if (parcel->number == 0) look_for_new(parcel->peer);
  }
  for (const auto& parcel : recvs_) push_recv(parcel);
  for (const auto& parcel : sends_) {
    if (parcel->peer == session_.rank()) push_send(*parcel);  // a message to itself is taken only now
  }
  sends_.remove_if(is_done);
  recvs_.remove_if(is_done);
}

bool Mailbox::waits_for_others_than(int peer) const {
  const auto is_other = [peer](const std::shared_ptr<Parcel>& parcel) { return parcel->peer != peer; };
  return std::any_of(sends_.begin(), sends_.end(), is_other) || std::any_of(recvs_.begin(), recvs_.end(), is_other);
}

std::string Mailbox::progress_of(const Parcel& parcel) const {
  const std::string peer = session_.who(parcel.peer);
  if (parcel.is_send) {
    if (!parcel.posted) return fmt::format("{} has not taken the {} messages before it", peer, kMessages);
    const Message& slot = message(session_.rank(), parcel.peer, parcel.number);
    if (slot.accepted.load(std::memory_order_acquire) != parcel.number) {
      return fmt::format("{} has not started to receive it", peer);
    }
  } else {
    if (parcel.number == 0) return fmt::format("{} has not started the other half", peer);
    if (!parcel.posted) return fmt::format("{} has sent it, and an earlier one that is not through yet", peer);
  }
  return fmt::format(
      "{} has started the other half, and {} of {} chunks are through; it must come back to its group to "
      "move the rest",
      peer, parcel.chunks, chunk_count(parcel.buffer));
}

void Mailbox::check_peer(const Parcel& parcel) {
  if (parcel.done || !session_.has_left(parcel.peer)) return;
  push();
  if (parcel.done) return;
  session_.fail(Cause::Kind::left, parcel.peer,
                comm::left_unanswered_text(session_.who(parcel.peer), session_.left_after(parcel.peer),
                                           session_.who(session_.rank()), parcel.describe()));
}

std::size_t Mailbox::chunk_count(const BufferView& buffer) const {
  const std::size_t window = session_.control().channel_window_bytes();
  return (buffer.bytes() + window - 1) / window;
}

void Mailbox::push_send(Parcel& parcel) {
  if (parcel.done) return;
  Message& slot = message(session_.rank(), parcel.peer, parcel.number);
  if (!parcel.posted) {
    // The slot's message before this one must have been taken.
    const std::uint64_t previous = parcel.number > kMessages ? parcel.number - kMessages : 0;
    if (slot.taken.load(std::memory_order_acquire) < previous) return;
    slot.staged.store(0, std::memory_order_relaxed);
    slot.count = parcel.buffer.count;
    slot.dtype = parcel.buffer.dtype;
    slot.tag = parcel.tag;
    slot.source = {};
    if (parcel.buffer.bytes() <= kMessageInlineBytes) {
      copy_bytes(slot.payload.data(), parcel.buffer.data, parcel.buffer.bytes());
    } else {
      slot.source = arenas_.find(parcel.buffer);
    }
    slot.posted.store(parcel.number, std::memory_order_release);
    parcel.posted = true;
    announce();
  }
  if (slot.accepted.load(std::memory_order_acquire) == parcel.number) move_out(parcel);
  parcel.done = slot.taken.load(std::memory_order_acquire) >= parcel.number;
}

void Mailbox::move_out(Parcel& parcel) {
  Message& slot = message(session_.rank(), parcel.peer, parcel.number);
  const Control& control = session_.control();
  const std::size_t window = control.channel_window_bytes();
  while (parcel.chunks < chunk_count(parcel.buffer)) {
    if (parcel.chunks >= 2 && slot.drained.load(std::memory_order_acquire) < parcel.chunks - 1) return;
    const std::size_t begin = parcel.chunks * window;
    copy_bytes(control.channel_window(session_.rank(), parcel.peer, parcel.chunks),
               static_cast<const std::byte*>(parcel.buffer.data) + begin,
               std::min(window, parcel.buffer.bytes() - begin));
    slot.staged.store(++parcel.chunks, std::memory_order_release);
    announce();
  }
}

void Mailbox::look_for_new(int sender) {
  Incoming& incoming = incoming_[static_cast<std::size_t>(sender)];
  for (;;) {
    const std::uint64_t next = incoming.last_seen + 1;
    const Message& slot = message(sender, session_.rank(), next);
    if (slot.posted.load(std::memory_order_acquire) != next) return;
    incoming.unmatched.push_back({next, slot.tag});
    incoming.last_seen = next;
  }
}

void Mailbox::match(Parcel& parcel) {
  Incoming& incoming = incoming_[static_cast<std::size_t>(parcel.peer)];
  const auto found = std::find_if(incoming.unmatched.begin(), incoming.unmatched.end(),
                                  [&](const Seen& seen) { return seen.tag == parcel.tag; });
  if (found == incoming.unmatched.end()) return;
  parcel.number = found->number;
  incoming.unmatched.erase(found);
  const Message& slot = message(parcel.peer, session_.rank(), parcel.number);
  if (slot.count != parcel.buffer.count || slot.dtype != parcel.buffer.dtype) {
    session_.fail(Cause::Kind::mismatch, -1,
                  comm::describe_mismatch(parcel, session_.who(session_.rank()), session_.who(parcel.peer), slot.count,
                                          slot.dtype));
  }
}

void Mailbox::push_recv(const std::shared_ptr<Parcel>& parcel) {
  if (parcel->done) return;
  Incoming& incoming = incoming_[static_cast<std::size_t>(parcel->peer)];
  if (parcel->number == 0) {
    match(*parcel);
    if (parcel->number == 0) return;
  }
  Message& slot = message(parcel->peer, session_.rank(), parcel->number);
  if (parcel->posted) return move_in(*parcel);
  const bool beside = parcel->buffer.bytes() <= kMessageInlineBytes;
  // The sender is through the allocate() in which this rank still is: its memory is taken at a later push.
  if (slot.source.arena >= 0 && !arenas_.knows(slot.source)) return;
  if (beside || slot.source.arena >= 0) {
    copy_bytes(parcel->buffer.data, beside ? slot.payload.data() : arenas_.address(parcel->peer, slot.source),
               parcel->buffer.bytes());
    slot.taken.store(parcel->number, std::memory_order_release);
    parcel->done = true;
    return announce();
  }
  if (incoming.in_window != nullptr && !incoming.in_window->done) return;
  incoming.in_window = parcel;
  slot.drained.store(0, std::memory_order_relaxed);
  slot.accepted.store(parcel->number, std::memory_order_release);
  parcel->posted = true;
  announce();
  move_in(*parcel);
}

void Mailbox::move_in(Parcel& parcel) {
  Message& slot = message(parcel.peer, session_.rank(), parcel.number);
  const Control& control = session_.control();
  const std::size_t window = control.channel_window_bytes();
  while (parcel.chunks < slot.staged.load(std::memory_order_acquire)) {
    const std::size_t begin = parcel.chunks * window;
    copy_bytes(static_cast<std::byte*>(parcel.buffer.data) + begin,
               control.channel_window(parcel.peer, session_.rank(), parcel.chunks),
               std::min(window, parcel.buffer.bytes() - begin));
    slot.drained.store(++parcel.chunks, std::memory_order_release);
    announce();
  }
  if (parcel.chunks < chunk_count(parcel.buffer)) return;
  slot.taken.store(parcel.number, std::memory_order_release);
  parcel.done = true;
  announce();
}

}  // namespace lockstep::shm
