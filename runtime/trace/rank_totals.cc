// SPDX-License-Identifier: Apache-2.0
#include "runtime/trace/rank_totals.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <span>
#include <utility>

#include "lockstep/base/environment.h"
#include "runtime/base/printable.h"
#include "runtime/base/random_bytes.h"
#include "runtime/base/text.h"

namespace lockstep::trace {
namespace {

// The order in which the numbers travel; loss and finding come behind them.
template <typename Totals, typename Take>
void for_each_number(Totals& totals, Take take) {
  for (auto* const number : {&totals.steps, &totals.until, &totals.on_device, &totals.in_steps, &totals.waited,
                             &totals.hidden, &totals.after_steps, &totals.rows, &totals.resident, &totals.snapshot_age,
                             &totals.wrong_steps, &totals.equal_in, &totals.left}) {
    take(*number);
  }
  for (auto& span : totals.spans) take(span);
  for (auto& bytes : totals.held) take(bytes);
}

// "1:2:12:fc2.weight"; a letter that would divide words is another.
std::string encode(const Finding& finding) {
  std::string name = kept_name(finding.parameter);
  std::replace_if(
      name.begin(), name.end(), [](char letter) { return letter <= ' ' || letter == ',' || letter == 127; }, '_');
  return fmt::format("{}:{}:{}:{}", static_cast<int>(finding.kind), finding.rank, finding.step, name);
}

std::optional<std::int64_t> take_number(std::string_view& text) { return parse_int(take_word(text, ':')); }

std::optional<double> double_of(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

// "6c72:12:0.001", the name in hexadecimal digits.
std::optional<Scalar> decode_scalar(std::string_view text) {
  const std::string_view digits = take_word(text, ':');
  const auto step = take_number(text);
  const auto value = double_of(text);
  constexpr std::size_t kMost = ScalarTable::kMostNameBytes;
  if (digits.empty() || digits.size() % 2 != 0 || digits.size() > 2 * kMost || !value) return std::nullopt;
  Scalar scalar{.step = step.value_or(-1), .value = *value};
  for (const char* at = digits.data(); at != digits.data() + digits.size(); at += 2) {
    std::uint8_t letter = 0;  // unsigned, so that from_chars() takes no minus
    if (std::from_chars(at, at + 2, letter, 16).ptr != at + 2) return std::nullopt;
    scalar.name += static_cast<char>(letter);
  }
  return scalar.step >= 0 && printable(scalar.name, kMost) == scalar.name ? std::optional(scalar) : std::nullopt;
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
                 .parameter = printable(text.substr(0, Finding::kMostNameBytes))};
}

}  // namespace

std::string encode(const RankTotals& totals) {
  std::string text;
  for_each_number(totals, [&](std::int64_t number) { text += fmt::format("{},", number); });
  text += totals.loss ? fmt::format("{}", *totals.loss) : "-";
  text += "," + (totals.finding ? encode(*totals.finding) : "-");
  for (const Scalar& scalar : totals.scalars) {
    text += fmt::format(",{}:{}:{}", hex_digits(std::as_bytes(std::span(scalar.name))), scalar.step, scalar.value);
  }
  return text;
}

std::optional<RankTotals> decode_rank_totals(std::string_view text) {
  if (text.size() > kMostTotalsCharacters) return std::nullopt;
  RankTotals totals;
  bool is_whole = true;
  for_each_number(totals, [&](std::int64_t& number) {
    const auto value = parse_int(take_word(text, ','));
    if (value) number = *value;
    is_whole &= value.has_value();
  });
  const std::string_view loss = take_word(text, ',');
  const std::string_view finding = take_word(text, ',');
  if (!is_whole || loss.empty() || finding.empty()) return std::nullopt;
  if (finding != "-") {
    totals.finding = decode_finding(finding);
    if (!totals.finding) return std::nullopt;
  }
  while (!text.empty()) {
    auto scalar = decode_scalar(take_word(text, ','));
    const bool is_known =
        !scalar || std::ranges::find(totals.scalars, scalar->name, &Scalar::name) != totals.scalars.end();
    if (!is_known && totals.scalars.size() < ScalarTable::kMostNames) totals.scalars.push_back(std::move(*scalar));
  }
  if (loss == "-") return totals;
  totals.loss = double_of(loss);
  return totals.loss ? std::optional(std::move(totals)) : std::nullopt;
}

}  // namespace lockstep::trace
