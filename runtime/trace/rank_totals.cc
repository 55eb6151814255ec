// SPDX-License-Identifier: Apache-2.0
#include "runtime/trace/rank_totals.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "lockstep/base/environment.h"

namespace lockstep::trace {
namespace {

constexpr std::size_t kMostCharacters = 640;

// The order in which the numbers travel; loss and finding come behind them.
template <typename Totals, typename Take>
void for_each_number(Totals& totals, Take take) {
  for (auto* const number : {&totals.steps, &totals.until, &totals.on_device, &totals.in_steps, &totals.waited,
                             &totals.hidden, &totals.after_steps, &totals.rows, &totals.resident, &totals.snapshot_age,
                             &totals.wrong_steps, &totals.equal_in}) {
    take(*number);
  }
  for (auto& span : totals.spans) take(span);
}

std::string_view take_word(std::string_view& text) {
  const std::string_view word = text.substr(0, text.find(','));
  text.remove_prefix(std::min(text.size(), word.size() + 1));
  return word;
}

// "1:2:12:fc2.weight"; a letter that would divide words is another.
std::string encode(const Finding& finding) {
  std::string name = kept_name(finding.parameter);
  std::replace_if(
      name.begin(), name.end(), [](char letter) { return letter <= ' ' || letter == ',' || letter == 127; }, '_');
  return fmt::format("{}:{}:{}:{}", static_cast<int>(finding.kind), finding.rank, finding.step, name);
}

std::optional<std::int64_t> take_number(std::string_view& text) {
  const std::string_view number = text.substr(0, text.find(':'));
  text.remove_prefix(std::min(text.size(), number.size() + 1));
  return parse_int(number);
}

// Nothing if there is none, or none that is known.
std::optional<Finding> decode_finding(std::string_view text) {
  const auto kind = take_number(text);
  const auto rank = take_number(text);
  const auto step = take_number(text);
  if (!kind || !rank || !step || *kind < 1 || *kind > static_cast<int>(FindingKind::apart)) return std::nullopt;
  return Finding{.kind = static_cast<FindingKind>(*kind),
                 .rank = static_cast<int>(*rank),
                 .step = *step,
                 .parameter = std::string(text.substr(0, Finding::kMostNameBytes))};
}

}  // namespace

std::string encode(const RankTotals& totals) {
  std::string text;
  for_each_number(totals, [&](std::int64_t number) { text += fmt::format("{},", number); });
  text += totals.loss ? fmt::format("{}", *totals.loss) : "-";
  return text + "," + (totals.finding ? encode(*totals.finding) : "-");
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
  const std::string_view finding = take_word(text);
  if (!is_whole || loss.empty() || finding.empty()) return std::nullopt;
  if (finding != "-") {
    totals.finding = decode_finding(finding);
    if (!totals.finding) return std::nullopt;
  }
  if (loss == "-") return totals;
  double value = 0;
  const auto [end, error] = std::from_chars(loss.data(), loss.data() + loss.size(), value);
  if (error != std::errc() || end != loss.data() + loss.size()) return std::nullopt;
  totals.loss = value;
  return totals;
}

}  // namespace lockstep::trace
