// SPDX-License-Identifier: Apache-2.0
#include "runtime/ddp/equality/data_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "runtime/base/hash.h"
#include "runtime/comm/disagreement.h"
#include "runtime/comm/group_internals.h"
#include "runtime/ddp/equality/compare_parameters.h"
#include "runtime/ddp/equality/gather_numbers.h"

namespace lockstep {
namespace {

// The number of 64-bit words that each rank sends for a comparison: the model's number, the count of the data loader's
// numbers, and kMostDataNumbers words for these numbers.
constexpr std::size_t kWords = 2 + kMostDataNumbers;

std::vector<std::uint64_t> words_of(int model, const DataNumbers& numbers) {
  if (numbers.size() > kMostDataNumbers) {
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: watch() got a loader whose identity() has {} numbers; let identity() "
                    "return at most {}",
                    numbers.size(), kMostDataNumbers));
  }
  std::vector<std::uint64_t> words{static_cast<std::uint64_t>(model), numbers.size()};
  for (const auto& [name, value] : numbers) words.push_back(value);
  words.resize(kWords);
  return words;
}

// Returns a text that lists the ranks' values of the word with index `word`, or an empty text if all values are equal.
// `all` has kWords words of each rank.
std::string difference(std::span<const std::uint64_t> all, std::size_t word) {
  std::vector<std::string> values;
  for (std::size_t at = word; at < all.size(); at += kWords) values.push_back(fmt::format("{}", all[at]));
  return describe_values(values);
}

// Returns the differences of the ranks' data as a sentence, or an empty text if the data are equal.
std::string differences(const DataNumbers& mine, std::span<const std::uint64_t> all) {
  if (const std::string text = difference(all, 1); !text.empty()) {
    return fmt::format("the number of values that watch() was given to compare: {}", text);
  }
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < mine.size(); ++i) {
    const std::string text = difference(all, 2 + i);
    if (!text.empty()) texts.push_back(fmt::format("{}: {}", mine[i].first, text));
  }
  return fmt::format("{}", fmt::join(texts, "; "));
}

}  // namespace

DataCheck::DataCheck(std::shared_ptr<ProcessGroup> group)
    : group_(std::move(group)), model_(group_->internals().next_model()) {}

std::int64_t DataCheck::digest(std::int64_t step) {
  DataNumbers numbers = identity_ ? identity_() : DataNumbers{};
  const std::vector<std::uint64_t> words = words_of(model_, numbers);
  const std::uint64_t digest = hash64(words.data(), words.size() * sizeof(words[0]));
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
  const std::vector<std::uint64_t> all = gather_numbers(*group_, words_of(model_, mine));
  if (const std::string models = difference(all, 0); !models.empty()) {
    comm::throw_disagreement(
        *group_,
        fmt::format("DistributedDataParallel: the ranks averaged the gradients of different models. Numbered by their "
                    "order of construction in this group, from 1, {}. Step the models in the same order on every rank",
                    models),
        -1, noted.step);
  }
  const std::string text = differences(mine, all);
  if (text.empty()) {  // the ranks judge the same model again, but have averaged a step of different models
    comm::throw_disagreement(
        *group_,
        fmt::format(
            "DistributedDataParallel: the ranks averaged the gradients of different models in step {}, since the ranks "
            "stepped their models in different orders. Step the models in the same order on every rank",
            noted.step),
        -1, noted.step);
  }
  comm::throw_disagreement(
      *group_,
      fmt::format("DistributedDataParallel: the ranks read different data in step {}: {}. Give the samplers of all "
                  "ranks the same numbers, and call watch() on the loader and set_epoch() on the sampler on every rank",
                  noted.step, text),
      -1, noted.step);
}

}  // namespace lockstep
