// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/arena_agreement.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/job/cause.h"
#include "runtime/base/logging.h"

namespace lockstep::comm {
namespace {

std::vector<std::string> gather(ProcessGroup& group, const std::string& problem, const ExchangeTexts& exchange) {
  try {
    return exchange ? exchange(problem) : all_gather_text(group, problem);
  } catch (const Error& error) {
    if (problem.empty()) throw;
    log_debug("allocate: the other ranks could not be told why this one has no memory: {}", error.what());
    std::vector<std::string> only_own(static_cast<std::size_t>(group.size()));
    only_own[static_cast<std::size_t>(group.rank())] = problem;
    return only_own;
  }
}

}  // namespace

void agree_on_arena(ProcessGroup& group, std::size_t bytes, const std::string& problem, const ExchangeTexts& exchange) {
  const std::vector<std::string> problems = gather(group, problem, exchange);
  const auto has_problem = [](const std::string& text) { return !text.empty(); };
  const auto first = std::find_if(problems.begin(), problems.end(), has_problem);
  if (first == problems.end()) return;
  barrier_before_throw(group);
  const auto first_rank = static_cast<std::size_t>(first - problems.begin());
  const rendezvous::Member& who = group.roster()[problem.empty() ? first_rank : static_cast<std::size_t>(group.rank())];
  Cause cause{.kind = Cause::Kind::failed, .rank = who.rank, .reporter = who.rank, .host = who.host, .pid = who.pid};
  cause.text = fmt::format("allocate ({} bytes per rank)", bytes);
  for (std::size_t r = 0; r < problems.size(); ++r) {
    if (problems[r].empty()) continue;
    cause.text += fmt::format("{} {}: {}", r == first_rank ? ":" : ";", group.roster()[r].describe(), problems[r]);
  }
  throw make_error<BackendUnavailable>(cause);
}

}  // namespace lockstep::comm
