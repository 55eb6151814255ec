// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/init/agree.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/base/record.h"
#include "runtime/rendezvous/consensus.h"

namespace lockstep {
namespace {

constexpr auto kFields = [](auto& reason, auto& fields) {
  fields("name", reason.name);
  fields.lines("why-not", reason.why_not);
};

// The reason against each that a rank has named, as the first rank in order says it.
std::vector<Reason> judge(std::string_view what, const rendezvous::Roster& roster, std::span<const std::string> texts) {
  std::vector<std::vector<Reason>> said;
  std::map<std::string, std::string> verdict;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    said.push_back(require_records<Reason>(
        texts[rank], kFields, fmt::format("init_process_group: the {}s of {}", what, roster[rank].describe())));
    for (const Reason& reason : said.back()) verdict[reason.name];
  }
  for (auto& [name, why_not] : verdict) {
    for (std::size_t rank = 0; rank < said.size() && why_not.empty(); ++rank) {
      const auto found = std::ranges::find(said[rank], name, &Reason::name);
      const std::string theirs =
          found == said[rank].end() ? fmt::format("it asked for another {}", what) : found->why_not;
      if (!theirs.empty()) why_not = fmt::format("{}: {}", roster[rank].describe(), theirs);
    }
  }
  std::vector<Reason> reasons;
  for (auto& [name, why_not] : verdict) reasons.push_back({name, std::move(why_not)});
  return reasons;
}

}  // namespace

std::vector<Reason> agree_on_reasons(std::string_view what, std::vector<Reason> own, const GroupContext& context,
                                     const Deadline& deadline) {
  rendezvous::Consensus consensus(
      *context.store, context.roster, context.identity.rank,
      {.name = std::string(what),
       .what = fmt::format("init_process_group: the ranks choose a {} together", what),
       .remedy = fmt::format("look at the output of the missing ranks, which may have asked for another {}", what)});
  const auto verdict_on = [&](std::span<const std::string> texts) {
    return write_records(judge(what, context.roster, texts), kFields);
  };
  const std::string said = write_records(own, kFields);
  if (std::all_of(own.begin(), own.end(), [](const Reason& reason) { return !reason.why_not.empty(); })) {
    try {
      consensus.contribute(said, verdict_on, deadline);
    } catch (const Error& error) {  // another rank was faster to fail, with the store that it hosts
      log_debug("init_process_group: the other ranks are not told why this one can take no {}: {}", what, error.what());
    }
    return own;
  }
  const auto verdict = require_records<Reason>(consensus.decide(said, verdict_on, deadline), kFields,
                                               fmt::format("init_process_group: store key '{}/verdict'", what));
  for (Reason& reason : own) {
    const auto theirs = std::ranges::find(verdict, reason.name, &Reason::name);
    if (theirs != verdict.end() && reason.why_not.empty()) reason.why_not = theirs->why_not;
  }
  return own;
}

}  // namespace lockstep
