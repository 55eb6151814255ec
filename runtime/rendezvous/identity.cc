#include "runtime/rendezvous/identity.h"

#include <fmt/format.h>

#include "runtime/base/error.h"
#include "runtime/rendezvous/families.h"

namespace lockstep::rendezvous {
namespace {

struct Found {
  std::string_view family;
  Reading reading;
};

bool agree(const Identity& a, const Identity& b) { return a.rank == b.rank && a.world_size == b.world_size; }

void require_agreement(const Found& first, const Found& second) {
  const Identity& a = first.reading.identity;
  const Identity& b = second.reading.identity;
  if (agree(a, b)) return;
  throw Mismatch(
      fmt::format("who am I: two launchers disagree: {} says rank {}/{} ({}), {} says rank {}/{} ({}); start the "
                  "program with one of "
                  "them, unset the other's variables, or pass rank and world_size to init_process_group",
                  a.source, a.rank, a.world_size, first.reading.variables, b.source, b.rank, b.world_size,
                  second.reading.variables));
}

void add_ignored(Identity& identity, const Found& found) {
  if (!identity.ignored.empty()) identity.ignored += "; ";
  identity.ignored += fmt::format("{} ({})", found.family, found.reading.variables);
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
  if (identity.store_address.empty() && identity.master_addr.empty() && identity.job_id.empty()) {
    identity.job_id = other.job_id;
    identity.pmix = other.pmix;
    if (identity.run_id.empty()) identity.run_id = other.run_id;
  }
}

// What was passed decides rank and size; what a launcher says beside them (where the store is) stays true.
Identity from_arguments(const IdentityOverrides& overrides, const std::vector<Found>& complete) {
  if (!overrides.rank || !overrides.world_size) {
    throw InvalidArgument(fmt::format(
        "init_process_group: {} was passed but {} was not; pass both, or neither to take them from the launcher",
        overrides.rank ? fmt::format("rank={}", *overrides.rank) : fmt::format("world_size={}", *overrides.world_size),
        overrides.rank ? "world_size" : "rank"));
  }
  if (*overrides.world_size < 1) {
    throw InvalidArgument(
        fmt::format("init_process_group: world_size={} was passed; it must be at least 1", *overrides.world_size));
  }
  if (*overrides.rank < 0 || *overrides.rank >= *overrides.world_size) {
    throw InvalidArgument(
        fmt::format("init_process_group: rank={} was passed with world_size={}; ranks of this world are "
                    "0 to {}",
                    *overrides.rank, *overrides.world_size, *overrides.world_size - 1));
  }
  Identity identity;
  if (!complete.empty()) {
    identity = complete.front().reading.identity;
    if (identity.rank != *overrides.rank || identity.world_size != *overrides.world_size) {
      identity.local_rank_known = identity.local_world_size_known = false;
      identity.local_rank = 0;
      identity.local_world_size = 1;
      identity.node_rank.reset();
      identity.pmix = false;  // its server knows other ranks
      identity.job_id.clear();
      add_ignored(identity, complete.front());
    }
  }
  identity.rank = *overrides.rank;
  identity.world_size = *overrides.world_size;
  identity.source = "arguments";
  return identity;
}

}  // namespace

Identity identify(const Environment& environment, const IdentityOverrides& overrides) {
  std::vector<Found> complete;
  std::vector<Found> incomplete;
  const bool by_arguments = overrides.rank || overrides.world_size;
  for (const Family& family : families()) {
    try {
      auto reading = family.read(environment);
      if (!reading) continue;
      (reading->problem.empty() ? complete : incomplete).push_back({family.name, std::move(*reading)});
    } catch (const InvalidArgument&) {
      if (!by_arguments) throw;  // what was passed wins over variables, bad ones too
    }
  }
  if (by_arguments) return from_arguments(overrides, complete);
  for (std::size_t i = 1; i < complete.size(); ++i) require_agreement(complete.front(), complete[i]);
  if (complete.empty() && !incomplete.empty()) throw InvalidArgument("who am I: " + incomplete.front().reading.problem);

  Identity identity;
  if (complete.empty()) {
    identity.source = "alone";
    return identity;
  }
  identity = complete.front().reading.identity;
  for (std::size_t i = 1; i < complete.size(); ++i) {
    fill_in(identity, complete[i].reading.identity);
    add_ignored(identity, complete[i]);
  }
  for (const Found& found : incomplete) add_ignored(identity, found);
  return identity;
}

}  // namespace lockstep::rendezvous
