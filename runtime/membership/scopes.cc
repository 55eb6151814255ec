// SPDX-License-Identifier: Apache-2.0
#include "runtime/membership/scopes.h"

#include <exception>
#include <utility>

#include "runtime/base/logging.h"

namespace lockstep::membership {

void Scopes::begin(Send send, std::function<bool()> is_answered) {
  MutexLock lock(mutex_);
  send_ = std::move(send);
  is_answered_ = std::move(is_answered);
}

void Scopes::say(const std::string& scope, const std::vector<int>& ranks, std::string_view word) {
  Send send;
  {
    MutexLock lock(mutex_);
    send = send_;
  }
  if (send) return send(scope, ranks, word);
  deliver(scope, std::string(word));
}

bool Scopes::is_answered() const {
  std::function<bool()> ask;
  {
    MutexLock lock(mutex_);
    ask = is_answered_;
  }
  return ask();
}

void Scopes::subscribe(const std::string& name, OnWord on_word) {
  MutexLock lock(mutex_);
  Scope& scope = scopes_[name];
  scope.on_word = std::move(on_word);
  pass_on(scope);
}

void Scopes::unsubscribe(const std::string& name) {
  MutexLock lock(mutex_);
  const auto found = scopes_.find(name);
  if (found == scopes_.end()) return;
  found->second.on_word = {};
  while (found->second.is_calling) changed_.wait(mutex_);
  scopes_.erase(found);
}

void Scopes::deliver(const std::string& name, std::string word) {
  MutexLock lock(mutex_);
  Scope& scope = scopes_[name];
  scope.words.push_back(std::move(word));
  pass_on(scope);
}

// One thread at a time calls, and it also calls for the words that others bring meanwhile: that keeps their order.
void Scopes::pass_on(Scope& scope) {
  while (scope.on_word && !scope.is_calling && !scope.words.empty()) {
    const OnWord on_word = scope.on_word;
    const std::string word = std::move(scope.words.front());
    scope.words.pop_front();
    scope.is_calling = true;
    mutex_.unlock();
    try {
      on_word(word);
    } catch (const std::exception& error) {  // the next word may still be understood
      log_error(
          "membership: a group of this rank could not act on a message of another rank: {}; if the group hangs, end "
          "this run",
          error.what());
    }
    mutex_.lock();
    scope.is_calling = false;
    changed_.notify_all();
  }
}

void GroupChannel::subscribe(Scopes::OnWord on_word) {
  is_subscribed_ = true;  // first: what comes at once may ask
  at_.scopes->subscribe(at_.scope, std::move(on_word));
}

void GroupChannel::unsubscribe() {
  if (is_subscribed_.exchange(false)) at_.scopes->unsubscribe(at_.scope);
}

}  // namespace lockstep::membership
