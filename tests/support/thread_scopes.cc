// SPDX-License-Identifier: Apache-2.0
#include "tests/support/thread_scopes.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/mutex.h"

namespace lockstep::testing {
namespace {

// One lock, so that all ranks of a store have one order. What is static here is never destroyed: a group whose start
// came back too late keeps its rank until after main().
Mutex& mutex = *new Mutex;
Condition& changed = *new Condition;

struct Rank {
  explicit Rank(std::string store_token) : token(std::move(store_token)) {
    MutexLock lock(mutex);
    ranks().push_back(this);
    const auto pass_on = [this](const std::string& scope, const std::vector<int>&, std::string_view word) {
      MutexLock locked(mutex);
      for (Rank* const rank : ranks()) {
        if (rank->token == token) rank->words.emplace_back(scope, word);
      }
      changed.notify_all();
    };
    scopes.begin(pass_on);
    thread = std::thread([this] { deliver(); });
  }
  ~Rank() {
    {
      MutexLock lock(mutex);
      std::erase(ranks(), this);
      is_over = true;
      changed.notify_all();
    }
    thread.join();
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  void deliver() {
    for (;;) {
      std::pair<std::string, std::string> word;
      {
        MutexLock lock(mutex);
        while (words.empty() && !is_over) changed.wait(mutex);
        if (is_over) return;
        word = std::move(words.front());
        words.pop_front();
      }
      scopes.deliver(word.first, word.second);
    }
  }

  static std::vector<Rank*>& ranks() REQUIRES(mutex) {
    static auto* const all = new std::vector<Rank*>;
    return *all;
  }

  const std::string token;
  membership::Scopes scopes;
  std::deque<std::pair<std::string, std::string>> words GUARDED_BY(mutex);
  bool is_over GUARDED_BY(mutex) = false;
  std::thread thread;
};

}  // namespace

std::shared_ptr<membership::Scopes> scopes_over(store::Store& store) {
  static std::atomic<int> stores{0};
  const auto rank = std::make_shared<Rank>(store.compare_set("test/scopes", "", std::to_string(++stores)));
  return {rank, &rank->scopes};
}

}  // namespace lockstep::testing
