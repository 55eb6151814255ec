// SPDX-License-Identifier: Apache-2.0
// A wire between threads of one process, for tests: nothing is lost on it unless the test says so.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/base/deadline.h"
#include "runtime/base/host.h"
#include "runtime/base/mutex.h"
#include "runtime/comm/backend.h"
#include "runtime/comm/wire/doorbell.h"
#include "runtime/comm/wire/frame.h"
#include "runtime/comm/wire/wire.h"
#include "runtime/net/stream.h"
#include "runtime/store/hash_store.h"
#include "tests/support/on_threads.h"
#include "tests/support/thread_scopes.h"

namespace lockstep::wire {

// The sleep of a doorbell's owner that waits for nothing else: until `bell` has been rung since it was last heard, or
// until the deadline.
inline void await_ring(Doorbell& bell, const Deadline& deadline) {
  while (!bell.hear() && !deadline.expired()) {
    bell.sleep_unless_rung([&] { net::wait_readable(bell.file(), deadline); });
  }
}

// A wire that nothing comes from; tests override what they look at.
class IdleWire : public Wire {
 public:
  std::string_view name() const override { return "idle"; }
  void open(Listener&, const Deadline&) override {}
  std::string opening() const override { return "nothing"; }
  void send_frame(int, const FrameBytes&) override {}
  Transfer send(const ConstPiece&, Tag) override { return 0; }
  Transfer receive(const Piece&, Tag) override { return 0; }
  bool done(Transfer) override { return true; }
  std::vector<int> awaited() override { return {}; }
  void wait(const Deadline&) override {}
  void wake() override {}
  void interrupt() override {}
  void cancel_transfers() override {}
  void close(const Deadline&) override {}
};

class MemoryWire final : public IdleWire {
 public:
  // What is asked of a wire about a transfer.
  enum class Call { receive, send, done };

  // What the wires of one group share.
  struct Hub {
    explicit Hub(std::size_t ranks)
        : size(ranks),
          bells(ranks),
          frames(ranks),
          lost(ranks),
          cancel_transfers(ranks),
          waits(ranks),
          sleeps(ranks),
          stopped(ranks) {}
    // For who has changed any of this.
    void notify() REQUIRES(mutex) {
      changed.notify_all();
      for (Doorbell* const bell : bells) {
        if (bell != nullptr) bell->ring();
      }
    }

    const std::size_t size;
    Mutex mutex;
    Condition changed;
    std::vector<Doorbell*> bells GUARDED_BY(mutex);                                // by rank, once it has a wire
    std::vector<std::deque<std::pair<int, FrameBytes>>> frames GUARDED_BY(mutex);  // by receiver, with the sender
    std::vector<std::deque<int>> lost GUARDED_BY(mutex);                           // by who is to hear of it
    std::vector<bool> cancel_transfers GUARDED_BY(mutex);
    std::vector<int> waits GUARDED_BY(mutex);                  // how often each rank has come to wait
    std::vector<bool> sleeps GUARDED_BY(mutex);                // whether it waits
    std::function<bool(Tag tag)> withholds GUARDED_BY(mutex);  // transfers that are never through, while it says true
    bool is_anything_withheld GUARDED_BY(mutex) = false;
    std::vector<bool> stopped GUARDED_BY(mutex);                           // by rank: it gets no frames
    std::map<std::pair<int, int>, std::size_t> carried GUARDED_BY(mutex);  // bytes of collectives, from and to
    std::map<std::pair<int, int>, int> announced GUARDED_BY(mutex);        // frames about collectives, from and to
    std::map<std::pair<int, std::uint64_t>, int> sent GUARDED_BY(mutex);   // of segments, by sender and tag's number
    // While it says true, a rank stands still in a call about a transfer.
    std::function<bool(int rank, Call call, Tag tag)> stands_still GUARDED_BY(mutex);
    bool is_anybody_standing GUARDED_BY(mutex) = false;
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
  void send_frame(int peer, const FrameBytes& frame) override {
    MutexLock lock(hub_->mutex);
    hub_->frames[static_cast<std::size_t>(peer)].emplace_back(rank_, frame);
    if (read_frame(frame)->kind == FrameKind::collective) ++hub_->announced[{rank_, peer}];
    hub_->notify();
  }
  Transfer send(const ConstPiece& piece, Tag tag) override {
    MutexLock lock(hub_->mutex);
    stand_still_in(Call::send, tag);
    if (tag.kind == Tag::Kind::segment) ++hub_->sent[{rank_, tag.number}];
    if (tag.kind != Tag::Kind::message) hub_->carried[{rank_, piece.peer}] += piece.bytes;
    hub_->bulk[{rank_, piece.peer, tag.kind, tag.number}].emplace_back(piece.data, piece.data + piece.bytes);
    hub_->notify();
    return post({piece.peer}, tag, false);
  }
  Transfer receive(const Piece& piece, Tag tag) override {
    MutexLock lock(hub_->mutex);
    stand_still_in(Call::receive, tag);
    return post(piece, tag, true);
  }
  bool done(Transfer transfer) override {
    MutexLock lock(hub_->mutex);
    if (interrupted_) throw Broken("interrupted");
    const auto found = posted_.find(transfer);
    stand_still_in(Call::done, found->second.tag);
    Posted& posted = found->second;
    if (hub_->withholds && hub_->withholds(posted.tag)) {
      hub_->is_anything_withheld = true;
      hub_->changed.notify_all();
      return false;
    }
    if (posted.is_receive) {
      deliver(posted.piece.peer, posted.tag);
      if (!posted.has_come) return false;
    }
    posted_.erase(found);
    return true;
  }
  std::vector<int> awaited() override {
    MutexLock lock(hub_->mutex);
    std::set<int> peers;
    for (const auto& [transfer, posted] : posted_) {
      if (!posted.is_receive || posted.has_come || posted.tag != posted_.begin()->second.tag) continue;
      if (hub_->bulk[{posted.piece.peer, rank_, posted.tag.kind, posted.tag.number}].empty()) {
        peers.insert(posted.piece.peer);
      }
    }
    return {peers.begin(), peers.end()};
  }
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
      hub_->sleeps[own] = true;
      hub_->changed.notify_all();
    }
    // Whoever rings it has changed something, be it on the hub or in the memory of a host.
    if (!interrupted()) await_ring(*bell_, deadline);
    {
      MutexLock lock(hub_->mutex);
      hub_->sleeps[own] = false;
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

 private:
  struct Posted {
    Piece piece;
    Tag tag;
    bool is_receive;
    bool has_come = false;
  };
  // To what was posted with this tag, the first to the first, whichever is asked about.
  void deliver(int peer, Tag tag) REQUIRES(hub_->mutex) {
    auto& queue = hub_->bulk[{peer, rank_, tag.kind, tag.number}];
    for (auto& [transfer, posted] : posted_) {
      if (queue.empty()) return;
      if (!posted.is_receive || posted.has_come || posted.piece.peer != peer || posted.tag != tag) continue;
      if (queue.front().size() != posted.piece.bytes) throw Broken("a piece of another size");
      std::copy(queue.front().begin(), queue.front().end(), posted.piece.data);
      queue.pop_front();
      posted.has_come = true;
    }
  }
  void stand_still_in(Call call, Tag tag) REQUIRES(hub_->mutex) {
    while (!interrupted_ && hub_->stands_still && hub_->stands_still(rank_, call, tag)) {
      hub_->is_anybody_standing = true;
      hub_->changed.notify_all();
      hub_->changed.wait(hub_->mutex);
    }
  }
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

using Hub = std::shared_ptr<MemoryWire::Hub>;

inline rendezvous::Roster roster_of(const std::vector<int>& ranks_of_hosts) {
  rendezvous::Roster roster;
  for (std::size_t host = 0; host < ranks_of_hosts.size(); ++host) {
    for (int local = 0; local < ranks_of_hosts[host]; ++local) {
      const int rank = static_cast<int>(roster.size());
      roster.push_back({rank, local, 100 + rank, "host" + std::to_string(host), boot_id(), std::to_string(host)});
    }
  }
  return roster;
}

// Calls on_rank(context, deadline) on a thread for each rank of the hosts.
template <typename OnRank>
void on_ranks(const rendezvous::Roster& roster, OnRank on_rank) {
  const auto store = std::make_shared<store::HashStore>();
  testing::on_threads(static_cast<int>(roster.size()), [&](int rank) {
    GroupContext context;
    context.identity.rank = rank;
    context.roster = roster;
    context.store = store;
    context.scopes = testing::scopes_over(*store);
    context.timeout = std::chrono::seconds(40);
    on_rank(context, Deadline::after(context.timeout));
  });
}

}  // namespace lockstep::wire
