// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/parent_watch.h"

#include <chrono>

#include "lockstep/base/error.h"

namespace lockstep::comm {
namespace {

// Between two looks at the parent.
constexpr std::chrono::milliseconds kLook{200};

// Returns the result of `wait`, which takes a deadline and may throw Timeout. The last word, with how long it was, is
// of a wait that has the deadline itself; one that ends before its time was ended for good.
template <typename Wait>
auto wait_looking(const ParentWatch& watch, const Deadline& deadline, const Wait& wait) {
  while (watch.looks()) {
    watch.check();
    const Deadline look = deadline.sooner(kLook);
    try {
      return wait(look);
    } catch (const Timeout&) {
      if (!look.expired() || deadline.expired()) break;
    }
  }
  watch.check();
  return wait(deadline);
}

}  // namespace

std::string SubgroupStore::get(std::string_view key, const Deadline& deadline) {
  return wait_looking(*watch_, deadline, [&](const Deadline& until) { return PrefixStore::get(key, until); });
}

std::vector<std::string> SubgroupStore::multi_get(std::span<const std::string> keys, const Deadline& deadline) {
  return wait_looking(*watch_, deadline, [&](const Deadline& until) { return PrefixStore::multi_get(keys, until); });
}

bool SubgroupStore::check(std::span<const std::string> keys) {
  watch_->check();
  return PrefixStore::check(keys);
}

}  // namespace lockstep::comm
