// SPDX-License-Identifier: Apache-2.0
// What the fake was told to do wrong, what it was called for, and what its caller did wrong. One per process.
//
// Threads: any.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::fake_nccl {

enum class Effect { none, hang, error, remote, flaky, block, wait, early, wrong };

class Books {
 public:
  static Books& get();

  void add_rules(std::string_view text);
  void clear_rules();
  // Of the `number`-th call of this name on `rank`, on the host's GPU of that index.
  Effect effect_of(const std::string& call, int number, int rank, int gpu = -1);
  // Returns when the call may go on: at once, never (block), or once the rules are cleared (wait).
  void hold(Effect effect);
  int version();

  void called(std::string text);
  std::vector<std::string> take_calls();

  void violation(const std::string& text);
  void collect(bool collecting);
  std::vector<std::string> take_violations();

 private:
  Books();
  struct Rule {
    std::string call;
    Effect effect = Effect::none;
    int number = 0;  // 0: every
    int rank = -1;   // -1: all
    int gpu = -1;    // -1: all
  };
  std::mutex mutex_;
  std::condition_variable cleared_;
  std::uint64_t times_cleared_ = 0;
  std::vector<Rule> rules_;
  int version_ = 0;
  std::vector<std::string> calls_;
  bool collecting_ = false;
  std::vector<std::string> violations_;
};

}  // namespace lockstep::fake_nccl
