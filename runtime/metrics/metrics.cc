// SPDX-License-Identifier: Apache-2.0
#include "lockstep/metrics/metrics.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>

#include "lockstep/base/error.h"
#include "lockstep/comm/values.h"
#include "runtime/base/hash.h"
#include "runtime/comm/collective_call.h"
#include "runtime/comm/disagreement.h"
#include "runtime/comm/stop_latch.h"

namespace lockstep {
namespace {

constexpr char kSeparator = '\n';

std::string joined(const std::vector<std::string>& names) { return fmt::format("{}", fmt::join(names, "\n")); }

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> names;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(kSeparator, begin), text.size());
    names.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}

std::string listed(const std::vector<std::string>& names) {
  return names.empty() ? "none" : fmt::format("'{}'", fmt::join(names, "', '"));
}

}  // namespace

double Metric::mean() const {
  return count == 0 ? std::numeric_limits<double>::quiet_NaN() : sum / static_cast<double>(count);
}

const Metric& MetricResults::operator[](std::string_view name) const {
  const auto found = std::find_if(all_.begin(), all_.end(), [&](const Metric& metric) { return metric.name == name; });
  if (found != all_.end()) return *found;
  if (all_.empty()) {  // an evaluation that was stopped before its first batch
    static const Metric nothing;
    return nothing;
  }
  std::vector<std::string> names;
  for (const Metric& metric : all_) names.push_back(metric.name);
  throw InvalidArgument(fmt::format("Metrics: no rank has added to '{}'; there are: {}", name, listed(names)));
}

std::string MetricResults::str() const {
  std::vector<std::string> texts;
  for (const Metric& metric : all_) texts.push_back(fmt::format("{} {:.6g}", metric.name, metric.mean()));
  return fmt::format("{}", fmt::join(texts, ", "));
}

void Metrics::Part::add(std::int64_t value) {
  std::int64_t sum = 0;
  if (__builtin_add_overflow(whole, value, &sum)) return add(static_cast<double>(value));
  whole = sum;
}

// Neumaier, "Rundungsfehleranalyse einiger Verfahren zur Summation endlicher Summen", ZAMM 54 (1974).
void Metrics::Part::add(double value) {
  const double sum = real + value;
  if (std::isfinite(sum)) error += std::abs(real) >= std::abs(value) ? (real - sum) + value : (value - sum) + real;
  real = sum;
}

void Metrics::Part::add(const Part& other) {
  add(other.whole);
  add(other.real);
  add(other.error);
  count += other.count;
}

Metrics::Part& Metrics::part_of(std::string_view name, std::int64_t count) {
  if (name.empty() || name.find(kSeparator) != std::string_view::npos) {
    throw InvalidArgument(fmt::format("Metrics: the name '{}'; give one of a line", name));
  }
  if (count < 0) {
    throw InvalidArgument(
        fmt::format("Metrics: '{}' with a count of {}; give 0 or more, the terms of the sum", name, count));
  }
  Part& part = parts_.try_emplace(std::string(name)).first->second;
  part.count += count;
  return part;
}

void Metrics::add_whole(std::string_view name, std::int64_t sum, std::int64_t count) { part_of(name, count).add(sum); }

void Metrics::add_real(std::string_view name, double sum, std::int64_t count) {
  // The mean of nothing, times 0.
  part_of(name, count).add(count == 0 && std::isnan(sum) ? 0.0 : sum);
}

std::vector<std::string> Metrics::names_of_all() const {
  std::vector<std::string> own;
  for (const auto& [name, part] : parts_) own.push_back(name);
  const std::vector<std::string> texts = all_gather_text(*group_, joined(own));
  std::size_t first = texts.size();  // rank that has added something
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank].empty()) continue;
    if (first == texts.size()) first = rank;
    if (texts[rank] == texts[first]) continue;
    const std::vector<std::string> one = split(texts[first]), other = split(texts[rank]);
    std::vector<std::string> only_one, only_other;
    std::set_difference(one.begin(), one.end(), other.begin(), other.end(), std::back_inserter(only_one));
    std::set_difference(other.begin(), other.end(), one.begin(), one.end(), std::back_inserter(only_other));
    comm::throw_disagreement(
        *group_, fmt::format("Metrics: only rank {} has added to {}, and only rank {} to {}; add to the same names on "
                             "every rank, with a count of 0 where there is nothing",
                             first, listed(only_one), rank, listed(only_other)));
  }
  return first == texts.size() ? std::vector<std::string>() : split(texts[first]);
}

MetricResults Metrics::result() {
  // As many travel in the one collective; more in a second one.
  constexpr std::size_t kInFirst = 16;
  struct Message {
    std::uint64_t names = 0;  // hash; 0 for none
    std::array<Part, kInFirst> parts = {};
    std::int64_t stop = 0;  // this rank's word
  };
  std::vector<std::string> names;
  for (const auto& [name, part] : parts_) names.push_back(name);
  Message own;
  if (!names.empty()) own.names = hash64(joined(names)) | 1;
  std::size_t next = 0;
  for (const auto& [name, part] : parts_) {
    if (next < kInFirst) own.parts[next++] = part;
  }
  StopLatch& latch = *group_->stop_latch();
  own.stop = latch.word(*group_);
  const std::vector<Message> all = comm::within_call("Metrics::result", [&] { return all_gather_value(own, *group_); });
  const auto asks = [](const Message& message) { return message.stop != 0; };
  latch.agree(*group_, std::any_of(all.begin(), all.end(), asks) ? 1 : 0);
  const bool are_alike =
      std::all_of(all.begin(), all.end(), [&](const Message& message) { return message.names == all[0].names; });
  if (!are_alike) names = names_of_all();

  std::vector<Part> sums(names.size());
  for (const Message& message : all) {
    for (std::size_t i = 0; i < std::min(names.size(), kInFirst); ++i) sums[i].add(message.parts[i]);
  }
  if (names.size() > kInFirst) {
    std::vector<Part> rest(names.size() - kInFirst);
    for (std::size_t i = 0; i < rest.size(); ++i) {
      if (const auto found = parts_.find(names[kInFirst + i]); found != parts_.end()) rest[i] = found->second;
    }
    std::vector<Part> theirs(rest.size() * all.size());
    all_gather_bytes(std::as_bytes(std::span(rest)), std::as_writable_bytes(std::span(theirs)), *group_);
    for (std::size_t i = 0; i < theirs.size(); ++i) sums[kInFirst + i % rest.size()].add(theirs[i]);
  }
  std::vector<Metric> results;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const Part& sum = sums[i];
    const double real = std::isfinite(sum.real) ? sum.real + sum.error : sum.real;
    results.push_back({names[i], static_cast<double>(sum.whole) + real, sum.count});
  }
  return MetricResults(std::move(results));
}

}  // namespace lockstep
