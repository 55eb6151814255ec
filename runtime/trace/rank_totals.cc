// SPDX-License-Identifier: Apache-2.0
#include "runtime/trace/rank_totals.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "lockstep/base/environment.h"

namespace lockstep::trace {
namespace {

constexpr std::size_t kMostCharacters = 500;

// The order in which the numbers travel; the loss comes behind them.
template <typename Totals, typename Take>
void for_each_number(Totals& totals, Take take) {
  for (auto* const number :
       {&totals.steps, &totals.until, &totals.on_device, &totals.in_steps, &totals.waited, &totals.hidden,
        &totals.after_steps, &totals.rows, &totals.resident, &totals.snapshot_age}) {
    take(*number);
  }
  for (auto& span : totals.spans) take(span);
}

std::string_view take_word(std::string_view& text) {
  const std::string_view word = text.substr(0, text.find(','));
  text.remove_prefix(std::min(text.size(), word.size() + 1));
  return word;
}

}  // namespace

std::string encode(const RankTotals& totals) {
  std::string text;
  for_each_number(totals, [&](std::int64_t number) { text += fmt::format("{},", number); });
  return text + (totals.loss ? fmt::format("{}", *totals.loss) : "-");
}

std::optional<RankTotals> decode_rank_totals(std::string_view text) {
  if (text.size() > kMostCharacters) return std::nullopt;
  RankTotals totals;
  bool is_whole = true;
  for_each_number(totals, [&](std::int64_t& number) {
    const auto value = parse_int(take_word(text));
    if (value) number = *value;
    is_whole &= value.has_value();
  });
  const std::string_view loss = take_word(text);
  if (!is_whole || loss.empty()) return std::nullopt;
  if (loss == "-") return totals;
  double value = 0;
  const auto [end, error] = std::from_chars(loss.data(), loss.data() + loss.size(), value);
  if (error != std::errc() || end != loss.data() + loss.size()) return std::nullopt;
  totals.loss = value;
  return totals;
}

}  // namespace lockstep::trace
