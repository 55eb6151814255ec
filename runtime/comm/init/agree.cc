#include "runtime/comm/init/agree.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <span>

#include "runtime/base/environment.h"
#include "runtime/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/rendezvous/consensus.h"

namespace lockstep {
namespace {

// A backend and its reason per line, with a tab between them.
std::string lines_of(std::span<const Reason> reasons) {
  std::string text;
  for (const Reason& reason : reasons) {
    std::string line = reason.why_not;
    std::replace(line.begin(), line.end(), '\n', ' ');
    text += reason.backend + '\t' + line + '\n';
  }
  return text;
}

// What follows "backend\t" in the line that begins with it, if there is one.
std::optional<std::string> line_of(const std::string& text, const std::string& backend) {
  const std::size_t begin = ("\n" + text).find("\n" + backend + '\t');
  if (begin == std::string::npos) return std::nullopt;
  const std::size_t rest = begin + backend.size() + 1;
  return text.substr(rest, text.find('\n', rest) - rest);
}

// Why whoever wrote `text` can't take `backend`.
std::string reason_in(const std::string& text, const std::string& backend) {
  return line_of(text, backend).value_or("it asked for another backend");
}

// What stands against each backend that any rank has named, as the first rank in order says it: "backend\trank\treason"
// per line. Nothing of those that all can take.
std::string verdict_on(std::span<const std::string> texts) {
  std::set<std::string> named;
  for (const std::string& text : texts) {
    std::size_t end = 0;
    for (std::size_t begin = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
      const std::size_t tab = text.find('\t', begin);
      if (tab < end) named.insert(text.substr(begin, tab - begin));
    }
  }
  std::string verdict;
  for (const std::string& backend : named) {
    for (std::size_t rank = 0; rank < texts.size(); ++rank) {
      const std::string reason = reason_in(texts[rank], backend);
      if (reason.empty()) continue;
      verdict += fmt::format("{}\t{}\t{}\n", backend, rank, reason);
      break;
    }
  }
  return verdict;
}

}  // namespace

std::vector<Reason> agree_on_reasons(std::vector<Reason> own, const GroupContext& context, const Deadline& deadline) {
  rendezvous::Consensus consensus(*context.store, context.roster, context.identity.rank,
                                  {.name = "backend",
                                   .what = "init_process_group: the ranks choose a backend together",
                                   .remedy = "did it ask for another backend?"});
  if (std::all_of(own.begin(), own.end(), [](const Reason& reason) { return !reason.why_not.empty(); })) {
    try {
      consensus.contribute(lines_of(own), verdict_on, deadline);
    } catch (const Error& error) {  // another rank was faster to fail, with the store that it hosts
      log_debug("init_process_group: the other ranks are not told why this one can take no backend: {}", error.what());
    }
    return own;
  }
  const std::string verdict = consensus.decide(lines_of(own), verdict_on, deadline);
  for (Reason& reason : own) {
    const auto theirs = line_of(verdict, reason.backend);
    if (!theirs || !reason.why_not.empty()) continue;
    const std::size_t tab = theirs->find('\t');
    const auto rank = parse_int(std::string_view(*theirs).substr(0, tab));
    if (!rank || *rank < 0 || static_cast<std::size_t>(*rank) >= context.roster.size() || tab == std::string::npos) {
      throw CorruptData(
          fmt::format("init_process_group: store key 'backend/verdict' holds '{}' about backend '{}', which is no rank "
                      "and its reason; run the same build of lockstep on all ranks",
                      *theirs, reason.backend));
    }
    reason.why_not =
        fmt::format("{}: {}", context.roster[static_cast<std::size_t>(*rank)].describe(), theirs->substr(tab + 1));
  }
  return own;
}

}  // namespace lockstep
