// SPDX-License-Identifier: Apache-2.0
#include "runtime/rendezvous/consensus.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "runtime/rendezvous/verdict.h"

namespace lockstep::rendezvous {
namespace {

constexpr std::chrono::milliseconds kSlice{200};

}  // namespace

std::vector<std::string> Consensus::keys() const {
  std::vector<std::string> all;
  for (std::size_t rank = 0; rank < roster_.size(); ++rank) all.push_back(key(static_cast<int>(rank)));
  return all;
}

template <typename Wait>
auto Consensus::wait_checking(const Deadline& deadline, const Wait& wait) const {
  for (;;) {
    try {
      return wait(options_.check ? deadline.sooner(kSlice) : deadline);
    } catch (const Timeout&) {
      if (options_.check) options_.check();
      if (!options_.check || deadline.expired()) throw;
    }
  }
}

bool Consensus::has_contributed(int rank) const {
  const std::string said = key(rank);
  return store_.check(std::span(&said, 1));
}

void Consensus::contribute(std::string_view own, const Judge& judge, const Deadline& deadline) {
  store_.set(key(rank_), own);
  if (store_.add(options_.name + "/count", 1) != static_cast<std::int64_t>(roster_.size())) return;
  std::string verdict(kAgreed);
  try {
    verdict += judge(store_.multi_get(keys(), deadline));
  } catch (const CorruptData& error) {
    verdict = std::string(kCorrupt) + error.what();
  }
  store_.compare_set(verdict_key(), "", verdict);
}

std::string Consensus::await_verdict(const Deadline& deadline) {
  std::string verdict;
  try {
    verdict = wait_checking(deadline, [this](const Deadline& until) { return store_.get(verdict_key(), until); });
  } catch (const Timeout&) {
    return report_missing(deadline);
  }
  return require_agreed(verdict, verdict_key());
}

std::string Consensus::decide(std::string_view own, const Judge& judge, const Deadline& deadline) {
  contribute(own, judge, deadline);
  return await_verdict(deadline);
}

std::vector<std::string> Consensus::gather(std::string_view own, const Deadline& deadline) {
  store_.set(key(rank_), own);
  try {
    return wait_checking(deadline, [this](const Deadline& until) { return store_.multi_get(keys(), until); });
  } catch (const Timeout&) {
    // The last of them may have come just now.
    const auto all = keys();
    if (store_.check(all)) return store_.multi_get(all, Deadline::after(kSlice));
    report_missing(deadline);
    throw;
  }
}

std::string Consensus::report_missing(const Deadline& deadline) {
  std::string missing;
  for (std::size_t rank = 0; rank < roster_.size(); ++rank) {
    if (has_contributed(static_cast<int>(rank))) continue;
    missing += (missing.empty() ? "" : ", ") + roster_[rank].describe();
  }
  const std::string text =
      missing.empty()
          ? fmt::format(
                "{}: all {} ranks came, but the last of them stopped before it could say what follows, {}; look "
                "for the first error in their output",
                options_.what, roster_.size(), deadline.progress())
          : fmt::format("{}: {} did not come, {}; {}", options_.what, missing, deadline.progress(), options_.remedy);
  return require_agreed(store_.compare_set(verdict_key(), "", std::string(kTimedOut) + text), verdict_key());
}

}  // namespace lockstep::rendezvous
