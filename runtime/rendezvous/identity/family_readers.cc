// SPDX-License-Identifier: Apache-2.0
#include "runtime/rendezvous/identity/family_readers.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "runtime/base/printable.h"
#include "runtime/membership/member_info.h"
#include "runtime/net/address.h"

namespace lockstep::rendezvous {

std::string list_set(const Environment& environment, std::initializer_list<std::string_view> names) {
  std::string text;
  for (const std::string_view name : names) {
    const auto value = environment.get(name);
    if (value) text += fmt::format("{}{}={}", text.empty() ? "" : " ", name, printable(*value, 200));
  }
  return text;
}

std::string_view first_set(const Environment& environment, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    if (environment.has(name)) return name;
  }
  return {};
}

std::optional<int> get_bounded(const Environment& environment, std::string_view name, std::int64_t low,
                               std::int64_t high) {
  if (name.empty()) return std::nullopt;
  const auto value = environment.get_int(name);
  if (!value) return std::nullopt;
  if (*value < low || *value > high) {
    throw InvalidArgument(
        fmt::format("environment: {}={} is out of range; it must be from {} to {}", name, *value, low, high));
  }
  return static_cast<int>(*value);
}

namespace {

void read_local(const Environment& environment, const LocalNames& names, Identity& identity) {
  const auto size = get_bounded(environment, names.size, 1, identity.world_size);
  const auto rank = get_bounded(environment, names.rank, 0, (size ? *size : identity.world_size) - 1);
  identity.local_rank_known = rank.has_value();
  identity.local_world_size_known = size.has_value();
  identity.local_rank = rank.value_or(0);
  identity.local_world_size = size.value_or(1);
}

}  // namespace

Reading read_world(const Environment& environment, std::string_view source, std::string_view rank_name,
                   std::string_view size_name, std::string variables, std::string_view remedy,
                   const LocalNames& local) {
  Reading reading;
  reading.variables = std::move(variables);
  Identity& identity = reading.identity;
  identity.source = source;
  const bool has_rank = environment.has(rank_name);
  const bool has_size = environment.has(size_name);
  if (!has_rank || !has_size) {
    const std::string_view there = has_rank ? rank_name : size_name;
    reading.verdict = Reading::Verdict::incomplete;
    reading.problem = has_rank || has_size
                          ? fmt::format("{} is set but {} is not ({}); {}, or unset {} to run alone", there,
                                        has_rank ? size_name : rank_name, reading.variables, remedy, there)
                          : fmt::format("{} is set but {} and {} are not; {}, or unset them to run alone",
                                        reading.variables, rank_name, size_name, remedy);
    return reading;
  }
  identity.world_size = *get_bounded(environment, size_name, 1, membership::kMaxWorldSize);
  const auto rank = *environment.get_int(rank_name);
  if (rank < 0 || rank >= identity.world_size) {
    throw InvalidArgument(
        fmt::format("environment: {}={} with {}={}: ranks of this world are 0 to {}; correct one of them", rank_name,
                    rank, size_name, identity.world_size, identity.world_size - 1));
  }
  identity.rank = static_cast<int>(rank);
  read_local(environment, local, identity);
  read_master(environment, identity);
  return reading;
}

void read_master(const Environment& environment, Identity& identity) {
  const std::string host = environment.get("MASTER_ADDR").value_or("");
  try {
    identity.master_addr = net::parse_host(host);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("environment: MASTER_ADDR: {}", error.what()));
  }
  identity.master_port = get_bounded(environment, "MASTER_PORT", 1, 65535).value_or(0);
  identity.master_from = kMasterVariables;
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

void read_pmix_server(const Environment& environment, Identity& identity) {
  const auto rank = environment.get("PMIX_RANK");
  identity.pmix = environment.has("PMIX_NAMESPACE") && rank && parse_int(*rank) == identity.rank;
}

void name_job(Identity& identity, std::string_view family, std::string job) {
  identity.job_family = family;
  identity.job_id = std::move(job);
  if (identity.run_id.empty()) identity.run_id = identity.job_id;
}

}  // namespace lockstep::rendezvous
