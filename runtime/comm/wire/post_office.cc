#include "runtime/comm/wire/post_office.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace lockstep::wire {
namespace {

void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}

Piece piece_of(const Parcel& parcel) {
  return {parcel.peer, static_cast<std::byte*>(parcel.buffer.data), parcel.buffer.bytes()};
}

Frame frame_about(FrameKind kind, const Parcel& parcel) {
  Frame frame;
  frame.kind = kind;
  frame.number = parcel.number;
  frame.record.dtype = parcel.buffer.dtype;
  frame.record.count = parcel.buffer.count;
  frame.record.root = parcel.tag;
  return frame;
}

}  // namespace

PostOffice::PostOffice(const rendezvous::Roster& roster, int rank)
    : roster_(roster), rank_(rank), last_sent_(roster.size()), posts_(roster.size()) {}

std::shared_ptr<Parcel> PostOffice::start(Parcel parcel) {
  auto started = std::make_shared<Parcel>(std::move(parcel));
  if (started->is_send) {
    started->number = ++last_sent_[static_cast<std::size_t>(started->peer)];
    sends_.push_back(started);
    if (started->peer == rank_) {
      posts_[static_cast<std::size_t>(rank_)].push_back(
          {started->number, started->tag, started->buffer.dtype, started->buffer.count, {}, started});
    } else {
      errands_.push_back({Errand::What::post, started});
    }
  } else {
    recvs_.push_back(started);
  }
  match();
  return started;
}

void PostOffice::on_frame(int peer, const Frame& frame) {
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
    const auto found = std::find_if(recvs_.begin(), recvs_.end(), [&](const std::shared_ptr<Parcel>& parcel) {
      return parcel->peer == peer && parcel->number == frame.number;
    });
    if (found != recvs_.end()) errands_.push_back({Errand::What::finish, *found});
    return;
  }
  const auto parcel = find_send(peer, frame.number);
  if (parcel == nullptr) return;
  if (frame.kind == FrameKind::taken) finish(*parcel);
  if (frame.kind == FrameKind::accept) errands_.push_back({Errand::What::deliver, parcel});
}

std::shared_ptr<Parcel> PostOffice::find_send(int peer, std::uint64_t number) const {
  const auto found = std::find_if(sends_.begin(), sends_.end(), [&](const std::shared_ptr<Parcel>& parcel) {
    return parcel->peer == peer && parcel->number == number;
  });
  return found == sends_.end() ? nullptr : *found;
}

void PostOffice::match() {
  const auto all = recvs_;  // take() may remove some
  for (const auto& recv : all) {
    if (recv->number != 0) continue;
    auto& posts = posts_[static_cast<std::size_t>(recv->peer)];
    const auto found =
        std::find_if(posts.begin(), posts.end(), [&](const Post& post) { return post.tag == recv->tag; });
    if (found == posts.end()) continue;
    Post post = std::move(*found);
    posts.erase(found);
    take(recv, std::move(post));
  }
}

void PostOffice::take(const std::shared_ptr<Parcel>& parcel, Post post) {
  parcel->number = post.number;
  if (post.count != parcel->buffer.count || post.dtype != parcel->buffer.dtype) {
    if (mismatch_) return;
    mismatch_ = comm::describe_mismatch(*parcel, who(rank_), who(parcel->peer), post.count, post.dtype);
    return;
  }
  if (post.local != nullptr) {
    copy_bytes(parcel->buffer.data, post.local->buffer.data, parcel->buffer.bytes());
    finish(*post.local);
    return finish(*parcel);
  }
  if (parcel->buffer.bytes() <= kInlineBytes && post.payload.size() != parcel->buffer.bytes()) {
    mismatch_ = fmt::format("{}: {} sent less than it said; run one version of lockstep on every host",
                            parcel->describe(), who(parcel->peer));
    return;
  }
  if (parcel->buffer.bytes() > kInlineBytes) return errands_.push_back({Errand::What::accept, parcel});
  errands_.push_back({Errand::What::take, parcel, std::move(post.payload)});
}

void PostOffice::finish(Parcel& parcel) {
  parcel.done = true;
  (parcel.is_send ? sends_ : recvs_).remove_if([&](const std::shared_ptr<Parcel>& other) {
    return other.get() == &parcel;
  });
}

std::deque<Errand> PostOffice::take_errands() {
  for (const Errand& errand : errands_) {
    if (errand.what == Errand::What::accept || errand.what == Errand::What::deliver) errand.parcel->under_way = true;
  }
  return std::exchange(errands_, {});
}

bool PostOffice::run(const Errand& errand, Wire& wire) {
  Parcel& parcel = *errand.parcel;
  const auto tell = [&](const Frame& frame) { wire.send_frame(parcel.peer, write_frame(frame)); };
  switch (errand.what) {
    case Errand::What::post: {
      Frame frame = frame_about(FrameKind::post, parcel);
      if (parcel.buffer.bytes() <= kInlineBytes) {
        frame.payload = {static_cast<const std::byte*>(parcel.buffer.data), parcel.buffer.bytes()};
      }
      tell(frame);
      return false;
    }
    case Errand::What::take:
      copy_bytes(parcel.buffer.data, errand.payload.data(), parcel.buffer.bytes());
      tell(frame_about(FrameKind::taken, parcel));
      return true;
    case Errand::What::accept:
      wire.expect(piece_of(parcel), parcel.number);
      tell(frame_about(FrameKind::accept, parcel));
      return false;
    case Errand::What::deliver:
      wire.deliver(piece_of(parcel), parcel.number);
      tell(frame_about(FrameKind::delivered, parcel));
      return true;
    case Errand::What::finish: wire.finish(parcel.peer, parcel.number); return true;
  }
  return false;
}

std::size_t PostOffice::owed() const {
  const auto delivered_to = std::count_if(recvs_.begin(), recvs_.end(), [](const std::shared_ptr<Parcel>& recv) {
    return recv->number != 0 && recv->buffer.bytes() > kInlineBytes;
  });
  return sends_.size() + static_cast<std::size_t>(delivered_to);
}

void PostOffice::refuse_posts() {
  recvs_.remove_if([](const std::shared_ptr<Parcel>& recv) { return recv->number == 0; });
}

std::shared_ptr<Parcel> PostOffice::waiting_for(int peer) const {
  // What is on its way from a rank that has left still comes: it said so before its goodbye.
  for (const auto& parcel : recvs_) {
    if (parcel->peer == peer && parcel->number == 0) return parcel;
  }
  for (const auto& parcel : sends_) {
    if (parcel->peer == peer) return parcel;
  }
  return nullptr;
}

std::string PostOffice::progress_of(const Parcel& parcel) const {
  if (parcel.under_way)
    return fmt::format("{} has started the other half, and its bytes are on their way", who(parcel.peer));
  if (parcel.is_send) return fmt::format("{} has not received it", who(parcel.peer));
  return fmt::format("{} has not started the other half", who(parcel.peer));
}

}  // namespace lockstep::wire
