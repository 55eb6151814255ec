// SPDX-License-Identifier: Apache-2.0
// A store that calls the test before it does what it is asked, on the thread that asks.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "runtime/store/hash_store.h"
#include "runtime/store/prefix_store.h"

namespace lockstep::comm {

class HookedStore final : public store::PrefixStore {
 public:
  using Hook = std::function<void()>;
  HookedStore(std::shared_ptr<store::Store> store, Hook hook)
      : PrefixStore("", std::move(store)), hook_(std::move(hook)) {}

  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired) override {
    hook_();
    return PrefixStore::compare_set(key, expected, desired);
  }
  bool check(std::span<const std::string> keys) override {
    hook_();
    return PrefixStore::check(keys);
  }

 private:
  const Hook hook_;
};

}  // namespace lockstep::comm
