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
#include "runtime/base/exact_sum.h"
#include "runtime/base/hash.h"
#include "runtime/base/printable.h"
#include "runtime/base/record.h"
#include "runtime/comm/collective_call.h"
#include "runtime/comm/coordinated_stop.h"
#include "runtime/comm/disagreement.h"
#include "runtime/comm/group_internals.h"
#include "runtime/trace/process_trace.h"

namespace lockstep {
namespace {

constexpr int kDoubleBits = std::numeric_limits<double>::digits;
// Of Part's digits: a multiple of 32 below the exponent of the least double's mantissa, which frexp() has filled up.
constexpr int kLowestExponent = -1152;
constexpr std::int64_t kMostCounted = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kAdditions = std::int64_t{1} << 29;  // after which a digit of 64 bits still has room

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
  throw InvalidArgument(
      fmt::format("Metrics: no rank has added a value named '{}'; the ranks have added: {}; ask for one of these names",
                  name, listed(names)));
}

std::string MetricResults::str() const {
  std::vector<std::string> texts;
  for (const Metric& metric : all_) texts.push_back(fmt::format("{} {:.6g}", metric.name, metric.mean()));
  return fmt::format("{}", fmt::join(texts, ", "));
}

void Metrics::Part::add(double value) {
  if (!std::isfinite(value)) {
    not_finite += value;
    return;
  }
  int exponent = 0;
  const double fraction = std::frexp(value, &exponent);
  add(static_cast<std::int64_t>(std::ldexp(fraction, kDoubleBits)), exponent - kDoubleBits);
}

void Metrics::Part::add(std::int64_t mantissa, int exponent) {
  exact::add(digits, mantissa, static_cast<std::size_t>(exponent - kLowestExponent));
  if (++since_carry >= kAdditions) carry();
}

void Metrics::Part::add(const Part& other) {
  for (std::size_t i = 0; i < digits.size(); ++i) digits[i] += other.digits[i];
  since_carry += other.since_carry + 1;
  if (since_carry >= kAdditions) carry();
  not_finite += other.not_finite;
  if (__builtin_add_overflow(count, other.count, &count)) {
    throw InvalidArgument(fmt::format(
        "Metrics: the counts of all ranks for one name sum to more than {}; add fewer values under that name",
        kMostCounted));
  }
}

void Metrics::Part::carry() {
  exact::carry(digits);
  since_carry = 0;
}

double Metrics::Part::sum() const {
  if (std::isnan(not_finite)) return std::numeric_limits<double>::quiet_NaN();
  if (not_finite != 0) return not_finite;
  auto whole = digits;
  return exact::nearest(whole, kLowestExponent);  // no double has a bit below the third digit
}

Metrics::Part& Metrics::part_of(std::string_view name, std::int64_t count) {
  if (name.empty() || name.find('\n') != std::string_view::npos) {
    throw InvalidArgument(
        fmt::format("Metrics: the name '{}' is empty or has several lines; give a name of one line", name));
  }
  if (count < 0) {
    throw InvalidArgument(fmt::format(
        "Metrics: '{}' was added with a count of {}; give the number of terms in the sum, 0 or more", name, count));
  }
  Part& part = parts_.try_emplace(std::string(name)).first->second;
  if (__builtin_add_overflow(part.count, count, &part.count)) {
    throw InvalidArgument(fmt::format("Metrics: '{}' counts more than {}", name, kMostCounted));
  }
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
  const std::vector<std::string> texts = all_gather_text(*group_, write_texts(own));
  const auto names_of = [&](std::size_t rank) {
    return require_texts(texts[rank], fmt::format("Metrics: the names of rank {}", rank));
  };
  std::size_t first = texts.size();  // rank that has added something
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank].empty()) continue;
    if (first == texts.size()) first = rank;
    if (texts[rank] == texts[first]) continue;
    const auto one = names_of(first), other = names_of(rank);
    std::vector<std::string> only_one, only_other;
    std::set_difference(one.begin(), one.end(), other.begin(), other.end(), std::back_inserter(only_one));
    std::set_difference(other.begin(), other.end(), one.begin(), one.end(), std::back_inserter(only_other));
    comm::throw_disagreement(
        *group_, fmt::format("Metrics: only rank {} has added to {}, and only rank {} to {}; add to the same names on "
                             "every rank, with a count of 0 where there is nothing",
                             first, listed(only_one), rank, listed(only_other)));
  }
  return first == texts.size() ? std::vector<std::string>() : names_of(first);
}

MetricResults Metrics::result() {
  // As many travel in the one collective; more in a second one.
  constexpr std::size_t kInFirst = 4;
  struct Message {
    std::uint64_t names = 0;  // hash; 0 for none
    std::array<Part, kInFirst> parts = {};
    std::int64_t stop = 0;  // this rank's word
  };
  std::vector<std::string> names;
  for (auto& [name, part] : parts_) {
    names.push_back(name);
    part.carry();  // what travels has room for others
  }
  Message own;
  if (!names.empty()) own.names = hash64(write_texts(names)) | 1;
  std::size_t next = 0;
  for (const auto& [name, part] : parts_) {
    if (next < kInFirst) own.parts[next++] = part;
  }
  CoordinatedStop& stop = *group_->internals().coordinated_stop();
  own.stop = stop.word(*group_);
  const std::vector<Message> all = comm::within_call("Metrics::result", [&] { return all_gather_value(own, *group_); });
  const auto asks = [](const Message& message) { return message.stop != 0; };
  stop.agree(*group_, std::any_of(all.begin(), all.end(), asks) ? 1 : 0);
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
    results.push_back({names[i], sums[i].sum(), sums[i].count});
  }
  return MetricResults(std::move(results));
}

void log_scalar(std::string_view name, double value, const ProcessGroup& group, std::optional<std::int64_t> step) {
  constexpr std::size_t kMost = trace::ScalarTable::kMostNameBytes;
  if (name.empty() || name.size() > kMost) {
    throw InvalidArgument(
        fmt::format("log_scalar: the name '{}' has {} bytes; give 1 to {} bytes", printable(name), name.size(), kMost));
  }
  if (printable(name, kMost) != name) {
    throw InvalidArgument(fmt::format(
        "log_scalar: the name '{}' has control characters or bytes that are not UTF-8; give a name without these",
        printable(name)));
  }
  constexpr std::int64_t kMostStep = trace::ScalarTable::kMostStep;
  if (step && (*step < 0 || *step > kMostStep)) {
    throw InvalidArgument(
        fmt::format("log_scalar: step {} of '{}' is not a number of steps; give 0 to {}", *step, name, kMostStep));
  }
  // A group that does not train itself counts no steps: those of the process are meant.
  if (const std::int64_t done = group.internals().coordinated_stop()->steps_done(); !step && done > 0) step = done;
  trace::keep_scalar(name, value, step);
}

}  // namespace lockstep
