#include "launcher/doctor/identity_findings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/base/error.h"
#include "runtime/net/address.h"
#include "runtime/net/tcp_socket.h"
#include "runtime/rendezvous/families.h"
#include "runtime/rendezvous/meet.h"
#include "runtime/store/secret.h"
#include "runtime/store/tcp_store.h"

namespace lockstep::launcher::doctor {
namespace {

using Means = rendezvous::MeetingPlan::Means;

constexpr const char* kWho = "who am I";
constexpr const char* kWhere = "where to meet";
constexpr const char* kAddresses = "addresses";

// A store that is there answers in milliseconds, also from another host.
constexpr std::chrono::seconds kStoreLimit{3};

// The variables of the chosen family, as found.
std::string variables_of(const Environment& environment, const rendezvous::Identity& identity) {
  for (const auto& family : rendezvous::families()) {
    const auto reading = family.read(environment);
    if (reading && reading->problem.empty() && reading->identity.source == identity.source) return reading->variables;
  }
  return "none";
}

std::string part_of(bool known, int rank, int size) {
  return known ? fmt::format("{} of {}", rank, size) : "told by the others when they meet";
}

Finding secret_finding(const Environment& environment) {
  const char* name = environment.has("LOCKSTEP_STORE_SECRET") ? "LOCKSTEP_STORE_SECRET" : "LOCKSTEP_STORE_SECRET_FILE";
  try {
    const auto secret = store::Secret::of_environment(environment);
    return {kWhere, "secret", secret ? fmt::format("from {}", name) : "none set"};
  } catch (const InvalidArgument& error) {
    return problem_of(kWhere, "secret", error.what(), fmt::format("correct or unset {}", name));
  }
}

std::string describe(const rendezvous::MeetingPlan& plan) {
  switch (plan.means) {
    case Means::alone: return "nowhere: a world of one needs no store";
    case Means::launcher_store:
      return fmt::format("at the store that is at {} ({})", plan.address.to_string(), plan.told_by);
    case Means::local_socket:
      return fmt::format("at a store of rank 0's on this host, found by its socket ({})", plan.told_by);
    case Means::pmix: return fmt::format("at a store of rank 0's, found through PMIx ({})", plan.told_by);
    case Means::file: return fmt::format("at a store of rank 0's, found in {}", plan.path);
    case Means::address:
      return fmt::format("at the store that rank 0 hosts at {} ({})", plan.address.to_string(), plan.told_by);
  }
  return {};
}

Finding ask_store(const net::HostPort& address) {
  try {
    store::TcpStore store(address, Deadline::after(kStoreLimit));
    return {kWhere, "store", fmt::format("{} answers and has {} keys", address.to_string(), store.num_keys())};
  } catch (const Error& error) {
    return {kWhere, "store", error.what(), Health::problem, "does the launcher that set these variables still run?"};
  }
}

// As rank 0 would listen.
Finding try_address(const net::HostPort& address) {
  try {
    net::tcp_listen(address);
    return {kWhere, "store",
            fmt::format("{} is an address of this host and free: rank 0 could host it", address.to_string())};
  } catch (const Error& error) {
    return {kWhere, "store", error.what(), Health::problem,
            "MASTER_ADDR is an address of rank 0's host, MASTER_PORT a port that is free there"};
  }
}

}  // namespace

IdentityFindings identity_findings(const Environment& environment) {
  IdentityFindings result;
  try {
    const auto identity = rendezvous::identify(environment);
    const bool alone = identity.source == "alone";
    result.findings = {{kWho, "started by", identity.source},
                       {kWho, "variables", alone ? "none of a launcher's" : variables_of(environment, identity)},
                       {kWho, "rank", fmt::format("{} of {}", identity.rank, identity.world_size)},
                       {kWho, "local rank",
                        part_of(alone || (identity.local_rank_known && identity.local_world_size_known),
                                identity.local_rank, identity.local_world_size)}};
    if (!identity.run_id.empty()) result.findings.push_back({kWho, "run", identity.run_id});
    if (!identity.ignored.empty()) result.findings.push_back({kWho, "seen and not used", identity.ignored});
    result.identity = identity;
  } catch (const Error& error) {
    result.findings = {
        problem_of(kWho, "started by", error.what(), "correct the variable, or start the program with lockstep run")};
  }
  return result;
}

Findings meeting_findings(const Environment& environment, const rendezvous::Identity& identity) {
  Findings findings;
  try {
    const auto plan = rendezvous::plan_meeting(identity, {}, environment.get("LOCKSTEP_BOOTSTRAP").value_or(""));
    findings.push_back({kWhere, "meets", describe(plan)});
    findings.push_back(secret_finding(environment));
    if (findings.back().health == Health::problem) return findings;
    if (plan.means == Means::launcher_store) findings.push_back(ask_store(plan.address));
    if (plan.means == Means::address && identity.rank == 0) findings.push_back(try_address(plan.address));
  } catch (const Error& error) {
    findings.push_back(problem_of(kWhere, "meets", error.what(),
                                  "set MASTER_ADDR and MASTER_PORT, or start the program with lockstep run"));
  }
  return findings;
}

Findings address_findings() {
  try {
    return {{kAddresses, "of this host", fmt::format("{}", fmt::join(net::local_addresses(), ", "))}};
  } catch (const Error& error) {
    return {{kAddresses, "of this host", error.what(), Health::problem, "allow this process to list its interfaces"}};
  }
}

}  // namespace lockstep::launcher::doctor
