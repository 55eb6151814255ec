// SPDX-License-Identifier: Apache-2.0
#include "runtime/rendezvous/identity/identity.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <climits>

#include "lockstep/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/io.h"
#include "runtime/base/logging.h"
#include "runtime/base/regular_file.h"
#include "runtime/membership/member_info.h"
#include "runtime/rendezvous/identity/families.h"
#include "runtime/rendezvous/identity/family_readers.h"

namespace lockstep::rendezvous {
namespace {

using Verdict = Reading::Verdict;

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 20;

struct Found {
  const Family* family;
  Reading reading;
};

bool agree(const Identity& a, const Identity& b) {
  return a.rank == b.rank && (a.world_size == b.world_size || a.size_from_pmix || b.size_from_pmix);
}

// A scheduler's task may be a launcher, whose ranks are others than the tasks.
bool may_differ(const Found& first, const Found& second) {
  return second.family->kind == Family::Kind::scheduler && first.family->kind != Family::Kind::by_hand;
}

void require_agreement(const Found& first, const Found& second) {
  const Identity& a = first.reading.identity;
  const Identity& b = second.reading.identity;
  if (agree(a, b) || may_differ(first, second)) return;
  throw Mismatch(fmt::format(
      "init_process_group: two launchers disagree: {} says rank {}/{} ({}), {} says rank {}/{} ({}); start the "
      "program with one of "
      "them, unset the other's variables, or pass rank and world_size to init_process_group",
      a.source, a.rank, a.world_size, first.reading.variables, b.source, b.rank, b.world_size,
      second.reading.variables));
}

// Whether `inner` was started within a task of `scheduler`: it has ranks that the scheduler has not.
bool outgrows(const Found& inner, const Found& scheduler) {
  const Identity& identity = inner.reading.identity;
  const int size = scheduler.reading.identity.world_size;
  return inner.family->kind == Family::Kind::launcher &&
         (identity.size_from_pmix ? identity.rank >= size : identity.world_size > size);
}

// A task of a scheduler's that is a launcher is not a rank: the variables about it (of the scheduler, and of its PMI
// plug-ins in the same words) hold for all ranks that it starts. Moves that from `complete` to `beside`.
void set_tasks_aside(std::vector<Found>& complete, std::vector<Found>& beside) {
  std::vector<Found> tasks;
  for (const Found& found : complete) {
    const bool scheduler = found.family->kind == Family::Kind::scheduler;
    if (scheduler && std::any_of(complete.begin(), complete.end(), [&](const auto& it) { return outgrows(it, found); }))
      tasks.push_back(found);
  }
  const auto of_task = [&](const Found& found) {
    return std::any_of(tasks.begin(), tasks.end(), [&](const Found& task) {
      return found.family->kind != Family::Kind::by_hand && agree(found.reading.identity, task.reading.identity) &&
             !outgrows(found, task);
    });
  };
  const auto kept =
      std::stable_partition(complete.begin(), complete.end(), [&](const auto& it) { return !of_task(it); });
  beside.insert(beside.end(), kept, complete.end());
  complete.erase(kept, complete.end());
}

void add_ignored(Identity& identity, const Found& found) {
  if (!identity.ignored.empty()) identity.ignored += "; ";
  identity.ignored += fmt::format("{} ({})", found.family->name, found.reading.variables);
}

// Two launchers that agree on rank and size: what the first leaves open, the second may know.
void fill_in(Identity& identity, const Identity& other) {
  if (!identity.local_rank_known && other.local_rank_known) {
    identity.local_rank = other.local_rank;
    identity.local_rank_known = true;
  }
  if (!identity.local_world_size_known && other.local_world_size_known) {
    identity.local_world_size = other.local_world_size;
    identity.local_world_size_known = true;
  }
  if (!identity.node_rank) identity.node_rank = other.node_rank;
  const bool knows_where = !identity.store_address.empty() || !identity.master_addr.empty() || identity.agent_store;
  if (knows_where || !identity.job_family.empty()) return;
  identity.job_family = other.job_family;
  identity.job_id = other.job_id;
  identity.job_ancestors = other.job_ancestors;
  identity.pmix = other.pmix;
  identity.master_addr = other.master_addr;
  identity.master_port = other.master_port;
  identity.master_from = other.master_from;
  if (identity.run_id.empty()) identity.run_id = other.run_id;
}

// lockstep's own variables outrank every launcher's.
void read_ours(const Environment& environment, Identity& identity) {
  identity.store_address = environment.get("LOCKSTEP_STORE").value_or("");
  if (const auto run = environment.get("LOCKSTEP_RUN_ID")) identity.run_id = *run;
  const auto restarts = environment.get_int("LOCKSTEP_RESTART_COUNT");
  if (!restarts) return;
  if (*restarts < 0 || *restarts > INT_MAX) {
    throw InvalidArgument(
        fmt::format("environment: LOCKSTEP_RESTART_COUNT={} is out of range; unset it, or set it to the number of "
                    "restarts, from 0 on",
                    *restarts));
  }
  identity.restart_count = static_cast<int>(*restarts);
}

// For ranks that were passed; with a URL they need no address, so that a bad one is left aside.
void read_exported_master(const Environment& environment, Identity& identity) {
  try {
    read_master(environment, identity);
  } catch (const InvalidArgument& error) {
    log_warn("init_process_group: {}; continuing without it", error.what());
  }
}

// Arguments decide rank and size; a launcher's other words (where the store is) stay true.
Identity from_arguments(const IdentityOverrides& overrides, const std::vector<Found>& complete,
                        const Environment& environment) {
  if (!overrides.rank || !overrides.world_size) {
    throw InvalidArgument(fmt::format(
        "init_process_group: {} was passed but {} was not; pass both, or neither to take them from the launcher",
        overrides.rank ? fmt::format("rank={}", *overrides.rank) : fmt::format("world_size={}", *overrides.world_size),
        overrides.rank ? "world_size" : "rank"));
  }
  if (*overrides.world_size < 1 || *overrides.world_size > membership::kMaxWorldSize) {
    throw InvalidArgument(
        fmt::format("init_process_group: world_size={} was passed; it must be from 1 to {}: pass the number of ranks",
                    *overrides.world_size, membership::kMaxWorldSize));
  }
  if (*overrides.rank < 0 || *overrides.rank >= *overrides.world_size) {
    throw InvalidArgument(fmt::format(
        "init_process_group: rank={} was passed with world_size={}; ranks of this world are 0 to {}: pass one of these",
        *overrides.rank, *overrides.world_size, *overrides.world_size - 1));
  }
  const Found* launcher = complete.empty() ? nullptr : &complete.front();
  const Identity known = launcher ? launcher->reading.identity : Identity();
  Identity identity;
  if (launcher && known.rank == *overrides.rank && known.world_size == *overrides.world_size) {
    identity = known;
  } else {
    // What the launcher says about its own ranks, and where they meet, does not hold for these.
    read_exported_master(environment, identity);
    identity.run_id = known.run_id;
    identity.restart_count = known.restart_count;
    identity.agent_store = known.agent_store;
    if (launcher) add_ignored(identity, *launcher);
  }
  identity.rank = *overrides.rank;
  identity.world_size = *overrides.world_size;
  identity.size_from_pmix = false;
  identity.source = "arguments";
  return identity;
}

}  // namespace

std::optional<std::string> read_launcher_file(const std::string& path) {
  try {
    const UniqueFd fd = open_regular(path, O_RDONLY);
    std::string text;
    if (!fd || !read_all(fd.get(), text, kMaxFileBytes)) return std::nullopt;
    return text;
  } catch (const InvalidArgument&) {
    return std::nullopt;
  }
}

Identity identify(const Environment& environment, const IdentityOverrides& overrides, const FileReader& read_file) {
  std::vector<Found> complete;
  std::vector<Found> incomplete;
  std::vector<Found> beside;
  const bool by_arguments = overrides.rank || overrides.world_size;
  for (const Family& family : families()) {
    try {
      auto reading = family.read(environment, read_file);
      if (!reading) continue;
      auto& list = reading->verdict == Verdict::rank         ? complete
                   : reading->verdict == Verdict::incomplete ? incomplete
                                                             : beside;
      list.push_back({&family, std::move(*reading)});
    } catch (const InvalidArgument&) {
      if (!by_arguments) throw;  // what was passed wins over variables, bad ones too
    }
  }
  set_tasks_aside(complete, beside);
  // A family that states the number of ranks needs no PMIx server for it.
  const auto sized = [](const Found& found) { return !found.reading.identity.size_from_pmix; };
  if (std::ranges::any_of(complete, sized)) std::stable_partition(complete.begin(), complete.end(), sized);
  Identity identity;
  if (by_arguments) {
    identity = from_arguments(overrides, complete, environment);
    read_ours(environment, identity);
    return identity;
  }
  for (std::size_t i = 1; i < complete.size(); ++i) require_agreement(complete.front(), complete[i]);
  if (complete.empty() && !incomplete.empty())
    throw InvalidArgument("init_process_group: " + incomplete.front().reading.problem);
  identity.source = "alone";
  if (!complete.empty()) {
    identity = complete.front().reading.identity;
    read_ours(environment, identity);
  } else if (const auto store = environment.get("LOCKSTEP_STORE")) {
    throw InvalidArgument(
        fmt::format("init_process_group: LOCKSTEP_STORE={} is set but RANK and WORLD_SIZE are not; set both, start the "
                    "program with "
                    "`lockstep run`, or unset LOCKSTEP_STORE to run alone",
                    *store));
  }
  for (std::size_t i = 1; i < complete.size(); ++i) {
    const Identity& other = complete[i].reading.identity;
    if (agree(identity, other)) fill_in(identity, other);
    const bool used_already = other.size_from_pmix && identity.pmix;
    if (!used_already) add_ignored(identity, complete[i]);
  }
  for (const Found& found : incomplete) add_ignored(identity, found);
  for (const Found& found : beside) add_ignored(identity, found);
  return identity;
}

int port_of_job(std::string_view job) {
  constexpr int kPorts = kLastJobPort - kFirstJobPort + 1;
  return kFirstJobPort + static_cast<int>(hash64(job) % kPorts);
}

}  // namespace lockstep::rendezvous
