// SPDX-License-Identifier: Apache-2.0
// Eight clients who do nothing wrong, and must not notice what others do.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/store/endpoint.h"

namespace lockstep::soak {

class GoodClients {
 public:
  static constexpr int kClients = 8;

  // Each runs in a thread of its own: barrier, a key for its neighbour, the neighbour's key, without end.
  explicit GoodClients(const store::Endpoint& endpoint);
  // Finishes the round and ends.
  ~GoodClients();

  std::int64_t rounds() const { return rounds_; }
  // What went wrong first; empty if nothing did.
  std::string failure() EXCLUDES(mutex_);

 private:
  void run(const store::Endpoint& endpoint, int rank);
  void fail(const std::string& what) EXCLUDES(mutex_);

  std::atomic<bool> stopping_ = false;
  std::atomic<std::int64_t> rounds_ = 0;
  Mutex mutex_;
  std::string failure_ GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace lockstep::soak
