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

// Why a rank, or all of them together, can't take each of those named; empty where it can.
using Reasons = std::map<std::string, std::string>;

std::string encode(const Reasons& reasons) {
  std::vector<std::string> texts;
  for (const auto& [name, why_not] : reasons) texts.insert(texts.end(), {name, why_not});
  return write_texts(texts);
}

Reasons decode(std::string_view what, const std::string& text, const std::string& where) {
  const auto texts = read_texts(text);
  if (!texts || texts->size() % 2 != 0) {
    throw CorruptData(fmt::format(
        "init_process_group: what {} says of the {}s, {} bytes, is not a list of them; run the same build of "
        "lockstep on all ranks",
        where, what, text.size()));
  }
  Reasons reasons;
  for (std::size_t i = 0; i < texts->size(); i += 2) reasons[(*texts)[i]] = (*texts)[i + 1];
  return reasons;
}

// The reason against each backend that a rank has named, as the first rank in order says it.
Reasons judge(std::string_view what, const rendezvous::Roster& roster, std::span<const std::string> texts) {
  std::vector<Reasons> said;
  Reasons verdict;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    said.push_back(decode(what, texts[rank], roster[rank].describe()));
    for (const auto& [name, why_not] : said.back()) verdict[name];
  }
  for (auto& [name, why_not] : verdict) {
    for (std::size_t rank = 0; rank < said.size() && why_not.empty(); ++rank) {
      const auto found = said[rank].find(name);
      const std::string theirs =
          found == said[rank].end() ? fmt::format("it asked for another {}", what) : found->second;
      if (!theirs.empty()) why_not = fmt::format("{}: {}", roster[rank].describe(), theirs);
    }
  }
  return verdict;
}

}  // namespace

std::vector<Reason> agree_on_reasons(std::string_view what, std::vector<Reason> own, const GroupContext& context,
                                     const Deadline& deadline) {
  rendezvous::Consensus consensus(*context.store, context.roster, context.identity.rank,
                                  {.name = std::string(what),
                                   .what = fmt::format("init_process_group: the ranks choose a {} together", what),
                                   .remedy = fmt::format("did it ask for another {}?", what)});
  const auto verdict_on = [&](std::span<const std::string> texts) {
    return encode(judge(what, context.roster, texts));
  };
  Reasons reasons;
  for (const Reason& reason : own) reasons[reason.name] = reason.why_not;
  if (std::all_of(own.begin(), own.end(), [](const Reason& reason) { return !reason.why_not.empty(); })) {
    try {
      consensus.contribute(encode(reasons), verdict_on, deadline);
    } catch (const Error& error) {  // another rank was faster to fail, with the store that it hosts
      log_debug("init_process_group: the other ranks are not told why this one can take no {}: {}", what, error.what());
    }
    return own;
  }
  const Reasons verdict = decode(what, consensus.decide(encode(reasons), verdict_on, deadline),
                                 fmt::format("store key '{}/verdict'", what));
  for (Reason& reason : own) {
    const auto theirs = verdict.find(reason.name);
    if (theirs != verdict.end() && reason.why_not.empty()) reason.why_not = theirs->second;
  }
  return own;
}

}  // namespace lockstep
