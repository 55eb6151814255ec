// SPDX-License-Identifier: Apache-2.0
#include "runtime/rendezvous/identity/family_readers.h"

#include <fmt/format.h>

#include <climits>

#include "lockstep/base/error.h"
#include "runtime/base/printable.h"
#include "runtime/base/text.h"
#include "runtime/membership/member_info.h"
#include "runtime/net/address.h"

namespace lockstep::rendezvous {
namespace {

using What = Family::What;

Reading without_world(const Family& family, const Environment& environment, std::string_view rank_name,
                      std::string_view size_name) {
  std::string variables = list_set(family, environment);
  const std::string_view own_remedy = family.names_of(What::remedy);
  const std::string_view remedy = own_remedy.empty() ? kByHand : own_remedy;
  const bool has_rank = environment.has(rank_name);
  if (!has_rank && !environment.has(size_name)) {
    return incomplete(variables, fmt::format("{} is set but {} and {} are not; {}, or unset them to run alone",
                                             variables, rank_name, size_name, remedy));
  }
  const auto [there, missing] = has_rank ? std::pair(rank_name, size_name) : std::pair(size_name, rank_name);
  return incomplete(variables, fmt::format("{} is set but {} is not ({}); {}, or unset {} to run alone", there, missing,
                                           variables, remedy, there));
}

}  // namespace

Reading incomplete(std::string variables, std::string problem) {
  return {.verdict = Reading::Verdict::incomplete, .variables = std::move(variables), .problem = std::move(problem)};
}

std::string list_set(const Family& family, const Environment& environment) {
  std::string text;
  const auto add = [&](std::string_view name) {
    const auto value = environment.get(name);
    if (value) text += fmt::format("{}{}={}", text.empty() ? "" : " ", name, printable(*value, 200));
  };
  for (const Family::Entry& entry : family.entries) {
    if (entry.what < What::also) add(first_set(environment, entry.names));
    if (entry.what != What::also) continue;
    for (const std::string_view name : split(entry.names, ' ')) add(name);
  }
  return text;
}

std::string_view first_set(const Environment& environment, std::string_view names) {
  for (const std::string_view name : split(names, ' ')) {
    if (environment.has(name)) return name;
  }
  return take_word(names);
}

std::optional<int> get_bounded(const Environment& environment, std::string_view name, std::int64_t low,
                               std::int64_t high) {
  const auto value = environment.get_int(name);
  if (!value) return std::nullopt;
  if (*value < low || *value > high) {
    throw InvalidArgument(
        fmt::format("environment: {}={} is out of range; it must be from {} to {}: correct or unset this variable",
                    name, *value, low, high));
  }
  return static_cast<int>(*value);
}

Reading read_world(const Family& family, const Environment& environment, const FileReader&) {
  const auto named = [&](What what) { return first_set(environment, family.names_of(what)); };
  const auto number = [&](What what, int low, int high) { return get_bounded(environment, named(what), low, high); };
  const auto rank_name = named(What::rank);
  const auto size_name = named(What::size);
  if (!environment.has(rank_name) || !environment.has(size_name)) {
    return without_world(family, environment, rank_name, size_name);
  }
  Reading reading{.variables = list_set(family, environment)};
  Identity& identity = reading.identity;
  const std::string_view source = family.names_of(What::source);
  identity.source = source.empty() ? family.name : source;
  identity.world_size = *number(What::size, 1, membership::kMaxWorldSize);
  const auto rank = *environment.get_int(rank_name);
  if (rank < 0 || rank >= identity.world_size) {
    throw InvalidArgument(
        fmt::format("environment: {}={} with {}={}: ranks of this world are 0 to {}; correct one of the two variables",
                    rank_name, rank, size_name, identity.world_size, identity.world_size - 1));
  }
  identity.rank = static_cast<int>(rank);
  const auto local_size = number(What::local_size, 1, identity.world_size);
  const auto local_rank = number(What::local_rank, 0, local_size.value_or(identity.world_size) - 1);
  identity.local_rank_known = local_rank.has_value();
  identity.local_world_size_known = local_size.has_value();
  identity.local_rank = local_rank.value_or(0);
  identity.local_world_size = local_size.value_or(1);
  read_master(environment, identity);
  identity.node_rank = number(What::node_rank, 0, identity.world_size - 1);
  identity.restart_count = number(What::restarts, 0, INT_MAX).value_or(0);
  name_job(identity, family, environment.get(named(What::job)).value_or(""));
  const std::string_view ancestors = family.names_of(What::ancestors);
  if (!ancestors.empty()) {
    identity.job_family = family.name;
    for (const std::string_view program : split(ancestors, ' ')) identity.job_ancestors.emplace_back(program);
  }
  const bool may_have_pmix = !ancestors.empty() || !named(What::job).empty();
  identity.pmix = may_have_pmix && environment.has("PMIX_NAMESPACE") &&
                  parse_int(environment.get("PMIX_RANK").value_or("")) == identity.rank;
  return reading;
}

Reading read_no_rank(const Family& family, const Environment& environment, const FileReader&) {
  return {.verdict = Reading::Verdict::no_rank, .variables = list_set(family, environment)};
}

void read_master(const Environment& environment, Identity& identity) {
  const std::string host = environment.get("MASTER_ADDR").value_or("");
  try {
    identity.master_addr = net::parse_host(host);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("environment: MASTER_ADDR: {}", error.what()));
  }
  identity.master_port = get_bounded(environment, "MASTER_PORT", 1, 65535).value_or(0);
  identity.master_from = "MASTER_ADDR and MASTER_PORT";
}

void stand_in_for_master(Identity& identity, std::string_view host, int port, std::string_view from) {
  if (host.empty()) return;
  const bool own_host = identity.master_addr.empty();
  const bool own_port = identity.master_port == 0;
  if (own_host) identity.master_addr = host;
  if (own_port) identity.master_port = port;
  if (own_host && own_port) {
    identity.master_from = from;
  } else if (own_host || own_port) {
    identity.master_from = fmt::format("{} and {}", own_host ? "MASTER_PORT" : "MASTER_ADDR", from);
  }
}

void name_job(Identity& identity, const Family& family, std::string job) {
  if (job.empty()) return;
  identity.job_family = family.name;
  identity.job_id = job;
  identity.run_id = std::move(job);
}

}  // namespace lockstep::rendezvous
