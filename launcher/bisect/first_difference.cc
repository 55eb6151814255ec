// SPDX-License-Identifier: Apache-2.0
#include "launcher/bisect/first_difference.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "runtime/base/printable.h"

namespace lockstep::launcher::bisect {
namespace {

// Returns the first of `all` that differs from `all.front()`.
std::optional<Apart> apart(const std::vector<Digests>& all, int micro_batch) {
  for (const Digests& digests : all) {
    if (digests.values == all.front().values) continue;
    Apart found{.micro_batch = micro_batch, .one = all.front().who, .other = digests.who, .parameters = {}};
    for (std::size_t i = 0; i < digests.values.size(); ++i) {
      if (digests.values[i] != all.front().values[i]) found.parameters.push_back(i);
    }
    return found;
  }
  return std::nullopt;
}

int micro_batches_recorded_twice(const Step& step) {
  return static_cast<int>(std::count_if(step.micro_batches.begin(), step.micro_batches.end(),
                                        [](const auto& micro_batch) { return micro_batch.second.size() > 1; }));
}

// Parameters without a gradient, which is 0 in all micro-batches, are left out: their equality proves nothing.
std::vector<bool> used_parameters(const Recorded& recorded, const Step& step) {
  std::vector<bool> used(recorded.parameters.size(), step.micro_batches.size() < 2);
  const Digests& first = step.micro_batches.begin()->second.front();
  for (const auto& [number, all] : step.micro_batches) {
    for (const Digests& digests : all) {
      for (std::size_t i = 0; i < used.size(); ++i) used[i] = used[i] || digests.values[i] != first.values[i];
    }
  }
  return used;
}

// Backward proceeds from the last layers to the first ones.
bool has_equal_end(const Apart& apart, const std::vector<bool>& used) {
  const auto behind = used.begin() + static_cast<std::ptrdiff_t>(apart.parameters.back()) + 1;
  return std::find(behind, used.end(), true) != used.end() &&
         std::count(used.begin(), behind, true) == static_cast<std::ptrdiff_t>(apart.parameters.size());
}

std::string line_of(const Apart& apart, const std::vector<std::string>& parameters) {
  const std::string what = apart.micro_batch < 0 ? "the sum" : fmt::format("micro-batch {}", apart.micro_batch);
  std::string text = fmt::format("  {}: {} of {} gradients, first '{}'", what, apart.parameters.size(),
                                 parameters.size(), printable(parameters[apart.parameters.front()]));
  if (apart.parameters.size() > 1) text += fmt::format(", last '{}'", printable(parameters[apart.parameters.back()]));
  return fmt::format("{}; {} against {}\n", text, printable(apart.one), printable(apart.other));
}

std::string meaning(const FirstDifference& difference, const Recorded& recorded) {
  if (difference.micro_batches.empty()) {
    if (difference.micro_batches_compared == recorded.micro_batches) {
      return "Each micro-batch is equal, and what they add up to is not: report it, with the files, as a fault of "
             "lockstep.\n";
    }
    return fmt::format("Of {} micro-batches {} were recorded twice, and are equal: give the folders of all hosts.\n",
                       recorded.micro_batches, difference.micro_batches_compared);
  }
  const auto differs_wholly = [&](const Apart& apart) { return apart.parameters.size() >= difference.parameters_used; };
  if (std::none_of(difference.micro_batches.begin(), difference.micro_batches.end(), differs_wholly)) {
    const Apart& first = difference.micro_batches.front();
    if (!first.has_equal_end)
      return "Some gradients are equal: look at what the gradients that differ have in common.\n";
    return fmt::format(
        "Gradients after '{}' are equal, so the forward was equal, too: look at the backward of the layers after it.\n",
        printable(recorded.parameters[first.parameters.back()]));
  }
  if (static_cast<int>(difference.micro_batches.size()) < difference.micro_batches_compared) {
    return "Other micro-batches are equal, so the weights were equal: the micro-batches that differ had other rows or "
           "random numbers, or a forward that depends on more than its rows.\n";
  }
  return "All micro-batches differ: the weights differed before this step (see lockstep snapshots diff), or something "
         "that all forwards share differs.\n";
}

}  // namespace

Comparison compare(const Recorded& recorded) {
  Comparison comparison;
  for (const auto& [number, step] : recorded.steps) {
    const int compared = micro_batches_recorded_twice(step);
    if (compared == 0) continue;
    if (comparison.steps++ == 0) {
      comparison.first = number;
      comparison.micro_batches_compared = compared;
    }
    comparison.last = number;
    comparison.micro_batches_compared = std::min(comparison.micro_batches_compared, compared);
    const std::vector<bool> used = used_parameters(recorded, step);
    FirstDifference difference{.step = number,
                               .micro_batches_compared = compared,
                               .parameters_used = static_cast<std::size_t>(std::count(used.begin(), used.end(), true)),
                               .micro_batches = {},
                               .sum = apart(step.sums, -1)};
    for (const auto& [micro_batch, digests] : step.micro_batches) {
      auto found = apart(digests, micro_batch);
      if (!found) continue;
      found->has_equal_end = has_equal_end(*found, used);
      difference.micro_batches.push_back(std::move(*found));
    }
    if (!difference.sum && difference.micro_batches.empty()) continue;
    comparison.difference = std::move(difference);
    return comparison;
  }
  if (comparison.steps == 0) {
    throw InvalidArgument("no step was recorded twice: give the folders of two runs that recorded the same steps");
  }
  return comparison;
}

std::string as_text(const Recorded& recorded, const Comparison& comparison) {
  if (!comparison.difference) {
    std::string text =
        fmt::format("equal: {} steps, from {} to {}, of {} fixed micro-batches and {} parameters\n", comparison.steps,
                    comparison.first, comparison.last, recorded.micro_batches, recorded.parameters.size());
    if (comparison.micro_batches_compared < recorded.micro_batches) {
      text += fmt::format(
          "In some step {} of the micro-batches were recorded twice: give the folders of all hosts to compare "
          "the others.\n",
          comparison.micro_batches_compared);
    }
    return text;
  }
  const FirstDifference& difference = *comparison.difference;
  std::string text =
      fmt::format("step {} is the first that differs, after {} equal ones\n", difference.step, comparison.steps - 1);
  for (const Apart& apart : difference.micro_batches) text += line_of(apart, recorded.parameters);
  if (difference.sum) text += line_of(*difference.sum, recorded.parameters);
  return text + meaning(difference, recorded);
}

}  // namespace lockstep::launcher::bisect
