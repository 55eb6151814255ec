// SPDX-License-Identifier: Apache-2.0
// A store that tells the test what the ranks say before any rank can read it.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "runtime/store/prefix_store.h"

namespace lockstep::testing {

class AnnouncingStore final : public store::PrefixStore {
 public:
  using Hook = std::function<void(std::string_view key, std::string_view value)>;
  AnnouncingStore(std::shared_ptr<store::Store> store, Hook hook)
      : PrefixStore("", std::move(store)), hook_(std::move(hook)) {}
  void set(std::string_view key, std::string_view value) override {
    hook_(key, value);
    PrefixStore::set(key, value);
  }

 private:
  const Hook hook_;
};

}  // namespace lockstep::testing
