// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/gloo/wire_gloo.h"

#include <fmt/format.h>
#include <gloo/common/error.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <set>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "runtime/base/quiet_thread.h"

namespace lockstep::gloo_backend {
namespace {

using std::chrono::milliseconds;

// All ranks are there when they begin to connect. One that dies just then must not cost the whole timeout of the job.
constexpr std::chrono::seconds kConnectTimeout{30};
constexpr std::size_t kOutboxFrames = 64;
constexpr std::size_t kMostInboxes = 64;

// Gloo matches what is sent with what is received by peer and slot.
constexpr std::uint64_t kFrameSlot = 1;
constexpr std::uint64_t kNeverUsedSlot = 2;
std::uint64_t slot_of(wire::Tag tag) {
  return ((std::uint64_t{1} + static_cast<std::uint64_t>(tag.kind)) << 56) | tag.number;
}

milliseconds milliseconds_left(const Deadline& deadline) {
  return std::max(milliseconds(1), std::min(kForever, std::chrono::ceil<milliseconds>(deadline.remaining())));
}

}  // namespace

WireGloo::WireGloo(GroupContext context)
    : context_(std::move(context)),
      rank_(context_.identity.rank),
      size_(static_cast<int>(context_.roster.size())),
      lost_(context_.roster.size()),
      choice_(choose_device(Environment::of_process(), context_.local_address)),
      mesh_(std::make_shared<Mesh>(rank_, size_, [this] { look_for_ends(); })) {
  for (int r = 0; r < size_; ++r) {
    if (r != rank_) others_.push_back(r);
  }
}

WireGloo::~WireGloo() { close(Deadline::after({})); }

std::string WireGloo::opening() const { return fmt::format("connections to every rank from {}", choice_.describe()); }

void WireGloo::open(wire::Listener& listener, const Deadline& deadline) {
  const Deadline patience = deadline.sooner(kConnectTimeout);
  {
    MutexLock lock(mutex_);
    if (interrupted_) throw wire::Broken("interrupted");
    opening_ = mesh_;
  }
  try {
    mesh_->connect(*context_.store, context_.roster,
                   {.name = "Gloo",
                    .interface = choice_.interface,
                    .address = choice_.address,
                    .remedy = "name another interface in GLOO_SOCKET_IFNAME",
                    .secret = context_.secret},
                   patience);
  } catch (const wire::Broken&) {
    throw;
  } catch (const std::exception& error) {
    // What the system says of an address needs more words; what is said of ranks and strangers has them.
    const bool is_of_the_system = dynamic_cast<const SystemError*>(&error) != nullptr;
    if (dynamic_cast<const Error*>(&error) != nullptr && !is_of_the_system) throw;
    const std::string text = fmt::format(
        "Gloo: {} can't connect to every rank from {}, {}: {}; see that the hosts reach each other there, or name "
        "another interface in GLOO_SOCKET_IFNAME",
        context_.roster[static_cast<std::size_t>(rank_)].describe(), choice_.describe(), patience.progress(),
        error.what());
    if (patience.expired()) throw Timeout(text);
    throw BackendUnavailable(text);
  }
  {
    MutexLock lock(mutex_);
    opening_ = nullptr;
  }
  outboxes_.resize(context_.roster.size());
  for (const int peer : others_) {
    Outbox& outbox = outboxes_[static_cast<std::size_t>(peer)];
    outbox.frames.resize(kOutboxFrames);
    outbox.buffer = buffer_over(outbox.frames.data(), kOutboxFrames * wire::kFrameBytes);
  }
  if (others_.empty()) return;
  inboxes_.resize(std::min(kMostInboxes, 2 * others_.size() + 2));
  for (Inbox& inbox : inboxes_) inbox.buffer = buffer_over(inbox.frame.data(), wire::kFrameBytes);
  const auto start = [this, &listener](void (WireGloo::*body)(wire::Listener&)) {
    return start_quiet_thread([this, &listener, body] {
      try {
        (this->*body)(listener);
      } catch (const std::exception& error) {
        listener.on_broken(error.what());
        wake();
      }
    });
  };
  receiver_ = start(&WireGloo::receive_frames);
  watcher_ = start(&WireGloo::watch_connections);
}

WireGloo::Buffer WireGloo::buffer_over(void* data, std::size_t bytes) {
  return mesh_->createUnboundBuffer(data, bytes);
}

void WireGloo::await(Outbox& outbox) {
  {
    MutexLock lock(mutex_);
    if (interrupted_) throw wire::Broken("interrupted");
    blocked_in_ = outbox.buffer.get();
  }
  std::string problem;
  try {
    if (!outbox.buffer->waitSend(nullptr, kForever)) problem = "interrupted";
  } catch (const std::exception& error) {
    problem = error.what();
  }
  {
    MutexLock lock(mutex_);
    blocked_in_ = nullptr;
  }
  if (!problem.empty()) throw wire::Broken(problem);
}

void WireGloo::send_frame(int peer, const wire::FrameBytes& frame) {
  Outbox& outbox = outboxes_[static_cast<std::size_t>(peer)];
  if (lost_[static_cast<std::size_t>(peer)].load()) return;
  if (outbox.under_way == kOutboxFrames) {
    await(outbox);
    --outbox.under_way;
  }
  outbox.frames[outbox.next] = frame;
  try {
    outbox.buffer->send(peer, kFrameSlot, outbox.next * wire::kFrameBytes, wire::kFrameBytes);
  } catch (const ::gloo::IoException&) {
    lost_[static_cast<std::size_t>(peer)].store(true);  // the watcher says so too, and to whom it matters
    return;
  } catch (const ::gloo::Exception& error) {
    throw wire::Broken(error.what());
  }
  outbox.next = (outbox.next + 1) % kOutboxFrames;
  ++outbox.under_way;
}

wire::Transfer WireGloo::post(Direction direction, const wire::Piece& piece, wire::Tag tag) {
  auto made = mesh_->make_polled_buffer(piece.data, piece.bytes);
  PolledBuffer& buffer = *made;
  wire::Transfer transfer = 0;
  {
    MutexLock lock(posted_mutex_);
    transfer = ++last_;
    posted_[transfer] = {.peer = piece.peer, .tag = tag, .buffer = std::move(made)};
  }
  try {
    if (direction == Direction::out) {
      buffer.send(piece.peer, slot_of(tag), 0, piece.bytes);
    } else {
      buffer.recv(piece.peer, slot_of(tag), 0, piece.bytes);
    }
  } catch (const ::gloo::Exception& error) {
    throw wire::Broken(error.what());
  }
  return transfer;
}

wire::Transfer WireGloo::send(const wire::Piece& piece, wire::Tag tag) { return post(Direction::out, piece, tag); }

wire::Transfer WireGloo::receive(const wire::Piece& piece, wire::Tag tag) { return post(Direction::in, piece, tag); }

bool WireGloo::done(wire::Transfer transfer) {
  {
    MutexLock lock(mutex_);
    if (interrupted_) throw wire::Broken("interrupted");
  }
  std::unique_ptr<PolledBuffer> buffer;  // it goes when the lock has gone
  {
    MutexLock lock(posted_mutex_);
    const auto found = posted_.find(transfer);
    if (!found->second.buffer->is_over()) return false;
    buffer = std::move(found->second.buffer);
    posted_.erase(found);
  }
  try {
    buffer->check();
  } catch (const std::exception& error) {
    throw wire::Broken(error.what());
  }
  return true;
}

void WireGloo::look_for_ends() {
  bool any = false;
  {
    MutexLock lock(posted_mutex_);
    for (auto& [transfer, posted] : posted_) {
      if (posted.is_told || !posted.buffer->is_over()) continue;
      posted.is_told = any = true;
    }
  }
  if (any) wake();
}

void WireGloo::cancel_transfers() {
  std::map<wire::Transfer, Posted> posted;  // they go when the lock has gone
  MutexLock lock(posted_mutex_);
  posted.swap(posted_);
}

// The inboxes are filled in the order in which they wait, and waited for in the same: so frames of one peer stay in
// order.
void WireGloo::receive_frames(wire::Listener& listener) {
  std::vector<int> peers = others_;
  const auto post = [&](Inbox& inbox) {
    while (!stopping_.load() && !peers.empty()) {
      try {
        return inbox.buffer->recv(peers, kFrameSlot, 0, wire::kFrameBytes);
      } catch (const ::gloo::IoException&) {
        peers = still_connected(peers);  // one of them had begun to send
      }
    }
  };
  for (Inbox& inbox : inboxes_) post(inbox);
  for (std::size_t next = 0; !stopping_.load(); next = (next + 1) % inboxes_.size()) {
    Inbox& inbox = inboxes_[next];
    try {
      int peer = -1;
      if (!inbox.buffer->waitRecv(&peer, kForever)) return;
      listener.on_frame(peer, inbox.frame);
      wake();
    } catch (const ::gloo::IoException&) {
      // Its sender is gone in the middle of it. The exception stays in the buffer, so a new one takes its place.
      MutexLock lock(mutex_);
      inbox.buffer = buffer_over(inbox.frame.data(), wire::kFrameBytes);
    }
    post(inbox);
  }
}

// Gloo refuses to receive from a peer whose connection has ended; there is no other way to ask it.
std::vector<int> WireGloo::still_connected(const std::vector<int>& peers) {
  std::uint8_t nothing = 0;
  const Buffer probe = buffer_over(&nothing, 1);
  std::vector<int> alive;
  for (const int peer : peers) {
    try {
      probe->recv(peer, kNeverUsedSlot, 0, 1);
      alive.push_back(peer);
    } catch (const ::gloo::IoException&) {
      lost_[static_cast<std::size_t>(peer)].store(true);  // the watcher tells of it
    }
  }
  return alive;
}

// A receive that never gets anything fails when its connection ends: that is how Gloo tells.
void WireGloo::watch_connections(wire::Listener& listener) {
  std::uint8_t nothing = 0;
  std::vector<int> watched = others_;
  while (!watched.empty()) {
    const Buffer buffer = buffer_over(&nothing, 1);
    {
      MutexLock lock(mutex_);
      watched_ = buffer.get();
    }
    std::vector<int> alive;
    for (const int peer : watched) {
      try {
        buffer->recv(peer, kNeverUsedSlot, 0, 1);
        alive.push_back(peer);
      } catch (const std::exception& error) {
        lost_[static_cast<std::size_t>(peer)].store(true);
        listener.on_lost(peer, error.what());
        wake();
      }
    }
    watched = alive;
    bool go_on = !stopping_.load();
    try {
      if (go_on && !watched.empty()) go_on = buffer->waitRecv(nullptr, kForever);
    } catch (const std::exception&) {
      // One has ended: the next round finds out which.
    }
    MutexLock lock(mutex_);
    watched_ = nullptr;
    if (!go_on) return;
  }
}

std::vector<int> WireGloo::awaited() {
  MutexLock lock(posted_mutex_);
  std::set<int> peers;
  std::optional<wire::Tag> oldest;
  for (auto& [transfer, posted] : posted_) {
    if (posted.buffer->is_over()) continue;
    if (!oldest || posted.tag.goes_before(*oldest)) {
      peers.clear();
      oldest = posted.tag;
    }
    if (posted.tag == *oldest) peers.insert(posted.peer);
  }
  return {peers.begin(), peers.end()};
}

void WireGloo::wait(const Deadline& deadline) {
  {
    MutexLock lock(mutex_);
    if (interrupted_) return;  // later it rings
  }
  bell_->wait(deadline);
}

void WireGloo::wake() { bell_->ring(); }

void WireGloo::interrupt() {
  MutexLock lock(mutex_);
  interrupted_ = true;
  bell_->ring();
  if (opening_ != nullptr) opening_->interrupt();
  if (blocked_in_ == nullptr) return;
  blocked_in_->abortWaitSend();
}

void WireGloo::flush(Outbox& outbox, const Deadline& deadline) {
  try {
    for (; outbox.under_way > 0; --outbox.under_way) outbox.buffer->waitSend(nullptr, milliseconds_left(deadline));
  } catch (const std::exception&) {
    // The peer is gone or stands still; there is no more time for it.
  }
}

void WireGloo::close(const Deadline& deadline) {
  for (const int peer : others_) {
    if (outboxes_.empty() || lost_[static_cast<std::size_t>(peer)].load()) continue;
    flush(outboxes_[static_cast<std::size_t>(peer)], deadline);
  }
  stopping_.store(true);
  {
    MutexLock lock(mutex_);
    if (watched_ != nullptr) watched_->abortWaitRecv();
    for (Inbox& inbox : inboxes_) inbox.buffer->abortWaitRecv();
  }
  if (watcher_.joinable()) watcher_.join();
  if (receiver_.joinable()) receiver_.join();
  {
    MutexLock lock(mutex_);
    opening_ = nullptr;
  }
  cancel_transfers();
  inboxes_.clear();
  outboxes_.clear();
  mesh_.reset();
}

}  // namespace lockstep::gloo_backend
