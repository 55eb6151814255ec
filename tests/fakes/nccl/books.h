// What the fake was told to do wrong, what it was called for, and what its caller did wrong. One per process.
//
// Threads: any.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::fake_nccl {

enum class Effect { none, hang, error, remote, flaky, block };

class Books {
 public:
  static Books& get();

  void add_rules(std::string_view text);
  void clear_rules();
  // Of the `number`-th call of this name on `rank`.
  Effect effect_of(const std::string& call, int number, int rank);
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
  };
  std::mutex mutex_;
  std::vector<Rule> rules_;
  int version_ = 0;
  std::vector<std::string> calls_;
  bool collecting_ = false;
  std::vector<std::string> violations_;
};

}  // namespace lockstep::fake_nccl
