#include "runtime/ddp/compare_parameters.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "runtime/base/environment.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/logging.h"
#include "runtime/net/backoff.h"
#include "runtime/rendezvous/roster.h"

namespace lockstep {
namespace {

// How often a rank that waits for the store looks whether the group still lives.
constexpr std::chrono::milliseconds kLookAfterGroup{200};
// How long rank 0 stays for the others to read how the models differ.
constexpr std::chrono::seconds kParting{5};

// A list of texts as one text: "5:first6:second", whatever the texts hold.
std::string pack(std::span<const std::string> texts) {
  std::string packed;
  for (const std::string& text : texts) packed += fmt::format("{}:{}", text.size(), text);
  return packed;
}

std::vector<std::string> unpack(std::string_view packed) {
  std::vector<std::string> texts;
  while (!packed.empty()) {
    const std::size_t colon = packed.find(':');
    const auto length = parse_int(packed.substr(0, colon));
    if (colon == std::string_view::npos || !length || *length < 0 ||
        static_cast<std::size_t>(*length) > packed.size() - colon - 1) {
      throw CorruptData(
          fmt::format("Reducer: the list of parameters of another rank is damaged, {} bytes before its "
                      "end; do all ranks run the same build?",
                      packed.size()));
    }
    texts.emplace_back(packed.substr(colon + 1, static_cast<std::size_t>(*length)));
    packed.remove_prefix(colon + 1 + static_cast<std::size_t>(*length));
  }
  return texts;
}

// Options first, then one entry per parameter.
std::vector<std::string> list_of(std::span<const ParameterSpec> specs, const BucketOptions& options) {
  std::vector<std::string> list;
  list.push_back(
      fmt::format("cap_bytes {}, first_cap_bytes {}", options.cap_bytes.value_or(0), options.first_cap_bytes));
  for (const ParameterSpec& spec : specs) list.push_back(spec.describe());
  return list;
}

std::vector<int> all_ranks(const ProcessGroup& group) {
  std::vector<int> ranks(static_cast<std::size_t>(group.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

class Comparison {
 public:
  // Reducers of a group are told apart by how many each rank has made before: the same on all, or they would differ.
  explicit Comparison(ProcessGroup& group)
      : group_(group),
        deadline_(Deadline::after(group.timeout())),
        prefix_(fmt::format("ddp/{}/", group.store().add(fmt::format("ddp/reducers/{}", group.rank()), 1))) {}

  void publish(std::string_view what, std::string_view value) { group_.store().set(key(what, group_.rank()), value); }

  // What the given ranks have published.
  std::vector<std::string> collect(std::string_view what, std::span<const int> ranks) {
    std::vector<std::string> keys;
    for (const int rank : ranks) keys.push_back(key(what, rank));
    for (;;) {
      try {
        return group_.store().multi_get(keys, deadline_.sooner(kLookAfterGroup));
      } catch (const Timeout&) {
        group_.progress();
        if (deadline_.expired()) throw_missing(keys, ranks);
      }
    }
  }

  // Rank 0 may host the store, and may end with the Mismatch it is about to throw: first all must have read what they
  // throw the same from. Who has read may be gone already, which fails the group and ends each wait at its store: so
  // rank 0 asks.
  void part() {
    try {
      const std::string readers = prefix_ + "readers";
      std::int64_t count = group_.store().add(readers, 1);
      if (group_.rank() != 0) return;
      const Deadline deadline = Deadline::after(kParting);
      for (net::Backoff backoff; count < group_.size() && backoff.pause(deadline);) {
        count = group_.store().add(readers, 0);
      }
    } catch (const Error& error) {
      // The difference is the first cause; that somebody did not stay to read it is not worth more than a line.
      log_debug("Reducer: not every rank read how the models differ: {}", error.what());
    }
  }

 private:
  std::string key(std::string_view what, int rank) const { return fmt::format("{}{}/{}", prefix_, what, rank); }

  [[noreturn]] void throw_missing(const std::vector<std::string>& keys, std::span<const int> ranks) {
    std::vector<int> missing;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (!group_.store().check(std::span(&keys[i], 1))) missing.push_back(ranks[i]);
    }
    throw Timeout(
        fmt::format("Reducer: rank {} of {} waited for the parameters of {}, {}; every rank must make its "
                    "Reducer, in the same order",
                    group_.rank(), group_.size(), rendezvous::describe_ranks(missing), deadline_.progress()));
  }

  ProcessGroup& group_;
  Deadline deadline_;
  std::string prefix_;
};

// Ranks by what they have, those of the lowest rank first.
std::vector<std::vector<int>> group_by_value(std::span<const std::string> values) {
  std::map<std::string_view, std::size_t> seen;
  std::vector<std::vector<int>> groups;
  for (std::size_t rank = 0; rank < values.size(); ++rank) {
    const auto [found, is_new] = seen.try_emplace(values[rank], groups.size());
    if (is_new) groups.emplace_back();
    groups[found->second].push_back(static_cast<int>(rank));
  }
  return groups;
}

}  // namespace

std::string first_difference(std::span<const std::vector<std::string>> lists) {
  std::size_t longest = 0;
  for (const auto& list : lists) longest = std::max(longest, list.size());
  for (std::size_t entry = 0; entry < longest; ++entry) {
    std::vector<std::string> values;
    for (const auto& list : lists) {
      values.push_back(entry < list.size() ? list[entry] : fmt::format("only {} parameters", list.size() - 1));
    }
    const auto groups = group_by_value(values);
    if (groups.size() == 1) continue;
    std::vector<std::string> parts;
    for (const auto& ranks : groups) {
      parts.push_back(fmt::format("{} {} {}", rendezvous::describe_ranks(ranks), ranks.size() == 1 ? "has" : "have",
                                  values[static_cast<std::size_t>(ranks.front())]));
    }
    const std::string what = entry == 0 ? "the bucket options" : fmt::format("parameter {}", entry - 1);
    return fmt::format("{}: {}", what, fmt::join(parts, "; "));
  }
  return {};
}

void compare_parameters(ProcessGroup& group, std::span<const ParameterSpec> specs, const BucketOptions& options,
                        std::string_view remedy) {
  if (group.size() == 1) return;
  const std::vector<std::string> mine = list_of(specs, options);
  const std::string packed = pack(mine);
  const std::vector<int> everyone = all_ranks(group);

  Comparison comparison(group);
  comparison.publish("hash", fmt::format("{:016x}", hash64(packed)));
  const auto groups = group_by_value(comparison.collect("hash", everyone));
  if (groups.size() == 1) return;

  // One rank of each kind tells the whole.
  std::vector<int> tellers;
  for (const auto& ranks : groups) tellers.push_back(ranks.front());
  if (std::find(tellers.begin(), tellers.end(), group.rank()) != tellers.end()) comparison.publish("list", packed);
  const auto told = comparison.collect("list", tellers);
  std::vector<std::vector<std::string>> lists(everyone.size());
  for (std::size_t kind = 0; kind < groups.size(); ++kind) {
    for (const int rank : groups[kind]) lists[static_cast<std::size_t>(rank)] = unpack(told[kind]);
  }
  comparison.part();
  throw Mismatch(
      fmt::format("Reducer: the ranks train different models. First difference, {}. Build the same model, "
                  "with its parameters in the same order and the same options, on every rank{}{}",
                  first_difference(lists), remedy.empty() ? "" : "; ", remedy));
}

}  // namespace lockstep
