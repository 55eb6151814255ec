// SPDX-License-Identifier: Apache-2.0
#include "runtime/ddp/equality/data_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "runtime/base/hash.h"
#include "runtime/comm/disagreement.h"
#include "runtime/ddp/equality/compare_parameters.h"
#include "runtime/ddp/equality/gather_numbers.h"

namespace lockstep {
namespace {

// How many there are, and the values.
constexpr std::size_t kWords = 1 + kMostDataNumbers;

std::vector<std::uint64_t> words_of(const DataNumbers& numbers) {
  if (numbers.size() > kMostDataNumbers) {
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: watch() of a loader whose identity has {} numbers; there may be {}",
                    numbers.size(), kMostDataNumbers));
  }
  std::vector<std::uint64_t> words{numbers.size()};
  for (const auto& [name, value] : numbers) words.push_back(value);
  words.resize(kWords);
  return words;
}

// The differences, as a sentence; empty without one. `all`: kWords of each rank.
std::string differences(const DataNumbers& mine, std::span<const std::uint64_t> all) {
  const auto values_at = [&](std::size_t word) {
    std::vector<std::string> values;
    for (std::size_t at = word; at < all.size(); at += kWords) values.push_back(fmt::format("{}", all[at]));
    return values;
  };
  if (const std::string text = describe_values(values_at(0)); !text.empty()) {
    return fmt::format("the number of values that watch() was given to compare: {}", text);
  }
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < mine.size(); ++i) {
    const std::string text = describe_values(values_at(1 + i));
    if (!text.empty()) texts.push_back(fmt::format("{}: {}", mine[i].first, text));
  }
  return fmt::format("{}", fmt::join(texts, "; "));
}

}  // namespace

std::int64_t DataCheck::digest(std::int64_t step) {
  DataNumbers numbers = identity_ ? identity_() : DataNumbers{};
  const std::vector<std::uint64_t> words = words_of(numbers);
  const std::uint64_t digest = numbers.empty() ? 0 : hash64(words.data(), words.size() * sizeof(words[0]));
  steps_.push_back({step, std::move(numbers)});
  return static_cast<std::int64_t>(digest);
}

void DataCheck::judge(const NotedStep& noted) {
  DataNumbers mine;
  while (!steps_.empty() && steps_.front().step <= noted.step) {
    mine = std::move(steps_.front().numbers);
    steps_.pop_front();
  }
  if (noted.of_all.data != 0) return;
  const std::string text = differences(mine, gather_numbers(*group_, words_of(mine)));
  comm::throw_disagreement(
      *group_,
      fmt::format(
          "DistributedDataParallel: the ranks read different data in step {}: {}. Give every rank's sampler the "
          "same numbers, watch() its loader, and call set_epoch() on all",
          noted.step, text),
      -1, noted.step);
}

}  // namespace lockstep
