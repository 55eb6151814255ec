// SPDX-License-Identifier: Apache-2.0
// What the ranks of a group tell each other over the job's membership, besides what the membership itself tells them.
//
// Each group has scopes. A word that a rank says there goes over its member link to the server, which passes it on to
// all ranks of the scope, the speaker among them: they hear the words of all scopes in one order. In a scope whose name
// ends in kFirstWord (membership_table.h) it passes on the first word alone, so that all ranks decide on one. It keeps
// no word, so a scope costs nothing until somebody says something. A word waits here until this rank subscribes. A word
// that comes after unsubscribe(), as in a group that fails, stays until the job ends.
//
// Threads: any.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/internal_api.h"
#include "runtime/base/mutex.h"

namespace lockstep::membership {

class LOCKSTEP_INTERNAL_API Scopes {
 public:
  using OnWord = std::function<void(std::string_view word)>;
  // Has a word passed on to these ranks of the job; none: all of them. Returns at once.
  using Send = std::function<void(const std::string& scope, const std::vector<int>& ranks, std::string_view word)>;

  // Words go out by `send` from now on; `is_answered`: nothing is known by which what is said now would be in vain.
  // Without them this rank is alone: it hears what it says.
  void begin(
      Send send, std::function<bool()> is_answered = [] { return true; }) EXCLUDES(mutex_);
  void say(const std::string& scope, const std::vector<int>& ranks, std::string_view word) EXCLUDES(mutex_);
  bool is_answered() const EXCLUDES(mutex_);
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

  mutable Mutex mutex_;
  Condition changed_;
  Send send_ GUARDED_BY(mutex_);
  std::function<bool()> is_answered_ GUARDED_BY(mutex_) = [] { return true; };
  std::map<std::string, Scope> scopes_ GUARDED_BY(mutex_);
};

struct ScopeAddress {
  std::shared_ptr<Scopes> scopes;
  std::string scope = {};
  std::vector<int> ranks = {};  // of the job, that hear what is said; none: all of them
};

// A scope as one of its ranks uses it. Threads: any, but for subscribe() and unsubscribe(): one at a time.
class LOCKSTEP_INTERNAL_API GroupChannel {
 public:
  explicit GroupChannel(ScopeAddress at) : at_(std::move(at)) {}
  ~GroupChannel() { unsubscribe(); }
  GroupChannel(const GroupChannel&) = delete;
  GroupChannel& operator=(const GroupChannel&) = delete;

  // As those of Scopes.
  void subscribe(Scopes::OnWord on_word);
  void unsubscribe();
  void say(std::string_view word) { at_.scopes->say(at_.scope, at_.ranks, word); }
  void say_to(int rank, std::string_view word) { at_.scopes->say(at_.scope, {rank}, word); }
  // False if this rank will not hear what it says now.
  bool is_answered() const { return is_subscribed_ && at_.scopes->is_answered(); }

 private:
  const ScopeAddress at_;
  std::atomic<bool> is_subscribed_{false};
};

}  // namespace lockstep::membership
