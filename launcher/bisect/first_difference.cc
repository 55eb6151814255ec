// SPDX-License-Identifier: Apache-2.0
#include "launcher/bisect/first_difference.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "runtime/base/printable.h"

namespace lockstep::launcher::bisect {
namespace {

// The first of them that differs from the first one.
std::optional<Apart> apart(const std::vector<Digests>& all, int shard) {
  for (const Digests& digests : all) {
    if (digests.values == all.front().values) continue;
    Apart found{.shard = shard, .one = all.front().who, .other = digests.who, .parameters = {}};
    for (std::size_t i = 0; i < digests.values.size(); ++i) {
      if (digests.values[i] != all.front().values[i]) found.parameters.push_back(i);
    }
    return found;
  }
  return std::nullopt;
}

bool is_recorded_twice(const Step& step) {
  return std::any_of(step.shards.begin(), step.shards.end(), [](const auto& shard) { return shard.second.size() > 1; });
}

std::string line_of(const Apart& apart, const std::vector<std::string>& parameters) {
  const std::string what = apart.shard < 0 ? "the sum" : fmt::format("shard {}", apart.shard);
  std::string text = fmt::format("  {}: {} of {} gradients, first '{}'", what, apart.parameters.size(),
                                 parameters.size(), printable(parameters[apart.parameters.front()]));
  if (apart.parameters.size() > 1) text += fmt::format(", last '{}'", printable(parameters[apart.parameters.back()]));
  return fmt::format("{}; {} against {}\n", text, printable(apart.one), printable(apart.other));
}

std::string meaning(const FirstDifference& difference, const Recorded& recorded) {
  if (difference.shards.empty()) {
    return "Each shard is equal, and what they add up to is not: report it, with the files, as a fault of lockstep.\n";
  }
  const Apart& first = difference.shards.front();
  if (first.parameters.size() < recorded.parameters.size()) {
    // Backward goes from the last layers to the first ones.
    std::size_t after = first.parameters.back() + 1;
    if (after < recorded.parameters.size() && first.parameters.size() == after) {
      return fmt::format(
          "Gradients from '{}' on are equal, so that forward was: look at the backward of what is before "
          "it.\n",
          printable(recorded.parameters[after]));
    }
    return "Some gradients are equal: look at what the others have in common.\n";
  }
  if (static_cast<int>(difference.shards.size()) < recorded.virtual_shards) {
    return "Other shards are equal, so that the weights were: these had other rows or random numbers, or a forward "
           "that "
           "depends on more than its rows.\n";
  }
  return "All shards differ: the weights did before this step (lockstep snapshots diff), or what all forwards share.\n";
}

}  // namespace

Comparison compare(const Recorded& recorded) {
  Comparison comparison;
  for (const auto& [number, step] : recorded.steps) {
    if (!is_recorded_twice(step)) continue;
    if (comparison.steps++ == 0) comparison.first = number;
    comparison.last = number;
    FirstDifference difference{.step = number, .shards = {}, .sum = apart(step.sums, -1)};
    for (const auto& [shard, digests] : step.shards) {
      if (auto found = apart(digests, shard)) difference.shards.push_back(std::move(*found));
    }
    if (!difference.sum && difference.shards.empty()) continue;
    comparison.difference = std::move(difference);
    return comparison;
  }
  if (comparison.steps == 0) {
    throw InvalidArgument("no step was recorded twice: give folders of two runs, from the same step on");
  }
  return comparison;
}

std::string as_text(const Recorded& recorded, const Comparison& comparison) {
  if (!comparison.difference) {
    return fmt::format("equal: {} steps, from {} to {}, of {} virtual shards and {} parameters\n", comparison.steps,
                       comparison.first, comparison.last, recorded.virtual_shards, recorded.parameters.size());
  }
  const FirstDifference& difference = *comparison.difference;
  std::string text =
      fmt::format("step {} is the first that differs, after {} equal ones\n", difference.step, comparison.steps - 1);
  for (const Apart& apart : difference.shards) text += line_of(apart, recorded.parameters);
  if (difference.sum) text += line_of(*difference.sum, recorded.parameters);
  return text + meaning(difference, recorded);
}

}  // namespace lockstep::launcher::bisect
