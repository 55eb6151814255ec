// SPDX-License-Identifier: Apache-2.0
// Eight clients who do nothing wrong, and must not notice what others do.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/base/mutex.h"
#include "runtime/membership/member_link.h"
#include "runtime/store/client/tcp_store.h"

namespace lockstep::soak {

class GoodClients {
 public:
  static constexpr int kClients = 8;

  // Each runs in a thread of its own: barrier, a key for its neighbour, the neighbour's key, without end.
  explicit GoodClients(const store::Endpoint& endpoint) {
    for (int rank = 0; rank < kClients; ++rank) {
      threads_.emplace_back([this, endpoint, rank] { run(endpoint, rank); });
    }
  }
  // Finishes the round and ends.
  ~GoodClients() {
    stopping_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

  std::int64_t rounds() const { return rounds_; }
  // What went wrong first; empty if nothing did.
  std::string failure() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return failure_;
  }

 private:
  void fail(const std::string& what) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (failure_.empty()) failure_ = what;
  }
  // Far above what a round takes on a loaded machine: only one who is forgotten meets it.
  static Deadline patience() { return Deadline::after(std::chrono::seconds(60)); }

  // Waits until all are in this round of `place`.
  static void meet(store::Store& store, std::string_view place, int rank, std::int64_t round) {
    const auto key = [&](int of, std::int64_t in) { return fmt::format("good/{}/{}/{}", place, of, in); };
    store.set(key(rank, round), "");
    std::vector<std::string> all;
    for (int other = 0; other < kClients; ++other) all.push_back(key(other, round));
    store.wait(all, patience());
    if (round > 0) store.erase(key(rank, round - 1));  // all have left that round
  }

  void run(const store::Endpoint& endpoint, int rank) {
    try {
      store::Endpoint own = endpoint;
      own.role = fmt::format("rank {}", rank);
      store::TcpStore store(own, patience());
      // Its fellows are never lost either. How fast they answer is the machine's matter here.
      const auto on_event = [this, rank](const membership::MemberEvent& event) {
        if (event.kind != membership::MemberEvent::Kind::left)
          fail(fmt::format("good client {} is told: {}", rank, event.cause.text));
      };
      const membership::MemberLink link(
          own, "good", {.rank = rank, .world_size = kClients, .process = membership::ProcessInfo::of_this_process()},
          {.detect_silence = false}, {.on_event = on_event}, patience());
      for (std::int64_t round = 0;; ++round) {
        // All leave after the same round, which rank 0 has told them in the round before.
        const std::string end = fmt::format("good/end/{}", round);
        if (rank == 0) store.set(end, stopping_ ? "end" : "go on");
        const std::string mine = fmt::format("good/{}/{}", rank, round);
        store.set(mine, mine);
        meet(store, "written", rank, round);
        const std::string theirs = fmt::format("good/{}/{}", (rank + 1) % kClients, round);
        if (store.get(theirs, patience()) != theirs) throw StoreError(fmt::format("'{}' has another value", theirs));
        const bool is_last = store.get(end, patience()) == "end";
        meet(store, "read", rank, round);
        store.erase(mine);
        if (rank == 0) {
          store.erase(end);
          ++rounds_;
        }
        if (is_last) return;
      }
    } catch (const std::exception& error) {
      fail(fmt::format("good client {}: {}", rank, error.what()));
    }
  }

  std::atomic<bool> stopping_ = false;
  std::atomic<std::int64_t> rounds_ = 0;
  Mutex mutex_;
  std::string failure_ GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace lockstep::soak
