// SPDX-License-Identifier: Apache-2.0
// A wire between threads of one process, for tests: nothing is lost on it unless the test says so.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/base/mutex.h"
#include "runtime/comm/wire/frame.h"
#include "runtime/comm/wire/wire.h"

namespace lockstep::wire {

class MemoryWire final : public Wire {
 public:
  // What the wires of one group share.
  struct Hub {
    explicit Hub(int size)
        : bells(static_cast<std::size_t>(size)),
          frames(bells.size()),
          lost(frames.size()),
          cancel_transfers(frames.size()),
          waits(frames.size()),
          stopped(frames.size()) {}
    // For who has changed any of this.
    void notify() REQUIRES(mutex) {
      changed.notify_all();
      for (Doorbell* const bell : bells) {
        if (bell != nullptr) bell->ring();
      }
    }

    Mutex mutex;
    Condition changed;
    std::vector<Doorbell*> bells GUARDED_BY(mutex);                                // by rank, once it has a wire
    std::vector<std::deque<std::pair<int, FrameBytes>>> frames GUARDED_BY(mutex);  // by receiver, with the sender
    std::vector<std::deque<int>> lost GUARDED_BY(mutex);                           // by who is to hear of it
    std::vector<bool> cancel_transfers GUARDED_BY(mutex);
    std::vector<int> waits GUARDED_BY(mutex);       // how often each rank has come to wait
    bool holds_messages GUARDED_BY(mutex) = false;  // they are never through
    bool message_held GUARDED_BY(mutex) = false;
    std::vector<bool> stopped GUARDED_BY(mutex);                           // by rank: it gets no frames
    std::map<std::pair<int, int>, std::size_t> carried GUARDED_BY(mutex);  // bytes of collectives, from and to
    std::map<std::pair<int, int>, int> announced GUARDED_BY(mutex);        // frames about collectives, from and to
    // From, to, kind and number of the tag.
    std::map<std::tuple<int, int, Tag::Kind, std::uint64_t>, std::deque<std::vector<std::byte>>> bulk GUARDED_BY(mutex);
  };

  MemoryWire(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}
  ~MemoryWire() override {
    MutexLock lock(hub_->mutex);
    hub_->bells[static_cast<std::size_t>(rank_)] = nullptr;
  }

  std::string_view name() const override { return "memory"; }
  void open(Listener& listener, const Deadline&) override { listener_ = &listener; }
  std::string opening() const override { return "nothing"; }
  void send_frame(int peer, const FrameBytes& frame) override {
    MutexLock lock(hub_->mutex);
    hub_->frames[static_cast<std::size_t>(peer)].emplace_back(rank_, frame);
    if (read_frame(frame)->kind == FrameKind::collective) ++hub_->announced[{rank_, peer}];
    hub_->notify();
  }
  // A message that is held is not through: whoever is blocked in it hears what is said meanwhile.
  Transfer send(const Piece& piece, Tag tag) override {
    MutexLock lock(hub_->mutex);
    if (tag.kind != Tag::Kind::message) hub_->carried[{rank_, piece.peer}] += piece.bytes;
    hub_->bulk[{rank_, piece.peer, tag.kind, tag.number}].emplace_back(piece.data, piece.data + piece.bytes);
    hub_->notify();
    return post(piece, tag, false);
  }
  Transfer receive(const Piece& piece, Tag tag) override {
    MutexLock lock(hub_->mutex);
    return post(piece, tag, true);
  }
  bool done(Transfer transfer) override {
    MutexLock lock(hub_->mutex);
    if (interrupted_) throw Broken("interrupted");
    const auto found = posted_.find(transfer);
    const Posted& posted = found->second;
    if (posted.tag.kind == Tag::Kind::message && !posted.is_receive) {
      hub_->message_held |= hub_->holds_messages;
      hub_->changed.notify_all();
      if (hub_->holds_messages) return false;
    }
    if (posted.is_receive) {
      auto& queue = hub_->bulk[{posted.piece.peer, rank_, posted.tag.kind, posted.tag.number}];
      if (queue.empty()) return false;
      if (queue.front().size() != posted.piece.bytes) throw Broken("a piece of another size");
      std::copy(queue.front().begin(), queue.front().end(), posted.piece.data);
      queue.pop_front();
    }
    posted_.erase(found);
    return true;
  }
  std::vector<int> awaited() override { return {}; }
  void sleep_on(Doorbell& bell) override {
    MutexLock lock(hub_->mutex);
    hub_->bells[static_cast<std::size_t>(rank_)] = bell_ = &bell;
  }
  void wait(const Deadline& deadline) override {
    std::deque<std::pair<int, FrameBytes>> frames;
    std::deque<int> lost;
    const auto own = static_cast<std::size_t>(rank_);
    {
      MutexLock lock(hub_->mutex);
      ++hub_->waits[own];
      hub_->changed.notify_all();
    }
    // Whoever rings it has changed something, be it on the hub or in the memory of a host.
    if (!interrupted()) bell_->wait(deadline);
    {
      MutexLock lock(hub_->mutex);
      if (!hub_->stopped[own]) frames.swap(hub_->frames[own]);
      lost.swap(hub_->lost[own]);
    }
    for (const auto& [peer, frame] : frames) listener_->on_frame(peer, frame);
    for (const int peer : lost) listener_->on_lost(peer, "the test took it away");
  }
  void wake() override { bell_->ring(); }
  void interrupt() override {
    MutexLock lock(hub_->mutex);
    interrupted_ = true;
    hub_->notify();
  }
  void cancel_transfers() override {
    MutexLock lock(hub_->mutex);
    hub_->cancel_transfers[static_cast<std::size_t>(rank_)] = true;
  }
  void close(const Deadline&) override {}

 private:
  struct Posted {
    Piece piece;
    Tag tag;
    bool is_receive;
  };
  Transfer post(const Piece& piece, Tag tag, bool is_receive) {
    posted_[++last_] = {piece, tag, is_receive};
    return last_;
  }
  bool interrupted() {
    MutexLock lock(hub_->mutex);
    return interrupted_;
  }
  std::shared_ptr<Hub> hub_;
  const int rank_;
  Listener* listener_ = nullptr;
  Doorbell* bell_ = nullptr;
  std::map<Transfer, Posted> posted_;
  Transfer last_ = 0;
  bool interrupted_ = false;  // under the hub's lock
};

}  // namespace lockstep::wire
