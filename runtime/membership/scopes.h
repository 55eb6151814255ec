// SPDX-License-Identifier: Apache-2.0
// What the ranks of a group tell each other over the job's membership, besides what the membership itself tells them.
//
// Each group is a scope. A word that a rank says there goes over its member link to the server, which passes it on to
// all ranks of the scope, the speaker among them: all of them hear the words of a scope in one order. The server keeps
// nothing of it, so a scope costs nothing until somebody says something. A word waits here until this
// rank subscribes. A word that comes after unsubscribe(), as in a group that fails, stays until the job ends.
//
// Threads: any.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/internal_api.h"
#include "runtime/base/mutex.h"

namespace lockstep::membership {

class LOCKSTEP_INTERNAL_API Scopes {
 public:
  using OnWord = std::function<void(std::string_view word)>;
  // Has a word passed on to these ranks of the job; none: all of them. Returns at once.
  using Send = std::function<void(const std::string& scope, const std::vector<int>& ranks, std::string_view word)>;

  // Words go out by `send` from now on. Without it this rank is alone: it hears what it says.
  void begin(Send send) EXCLUDES(mutex_);
  void say(const std::string& scope, const std::vector<int>& ranks, std::string_view word) EXCLUDES(mutex_);
  // `on_word` gets the words of the scope, one at a time, with no lock held: on the link's thread, and on this one
  // those that came before. Once for each scope.
  void subscribe(const std::string& scope, OnWord on_word) EXCLUDES(mutex_);
  // After it nothing is called back. Not from within on_word.
  void unsubscribe(const std::string& scope) EXCLUDES(mutex_);
  // A word has come.
  void deliver(const std::string& scope, std::string word) EXCLUDES(mutex_);

 private:
  struct Scope {
    OnWord on_word = {};
    bool is_calling = false;
    std::deque<std::string> words = {};  // that on_word has not got
  };

  void pass_on(Scope& scope) REQUIRES(mutex_);

  Mutex mutex_;
  Condition changed_;
  Send send_ GUARDED_BY(mutex_);
  std::map<std::string, Scope> scopes_ GUARDED_BY(mutex_);
};

}  // namespace lockstep::membership
