// Who am I, who are we: read from a map of variables, as launchers set them. A pure function, no sockets.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/base/environment.h"

namespace lockstep::rendezvous {

// What a rank knows of itself before it has met anybody.
struct Identity {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;            // rank among those on this host
  int local_world_size = 1;      // ranks on this host
  std::optional<int> node_rank;  // index of this host, where the launcher says it; some don't
  std::string run_id;            // one name per job and attempt, where the launcher has one, else empty
  int restart_count = 0;         // how often the launcher has restarted this job
  std::string source;            // how it was known: "lockstep run", "Open MPI", "RANK and WORLD_SIZE", "alone"
  std::string ignored;  // other launchers' variables that were seen and not used, for the start line; may be empty

  // False: the launcher did not say, and join() fills it in from who is on this host.
  bool local_rank_known = false;
  bool local_world_size_known = false;

  // Where the job's store is, if the launcher says so.
  std::string store_address;  // LOCKSTEP_STORE, host:port: hosted by the launcher
  std::string master_addr;    // MASTER_ADDR: rank 0 hosts the store there
  int master_port = 0;        // MASTER_PORT, 0 if unset
  bool agent_store = false;   // torchrun's agent hosts a store at master_addr: rank 0 must not
  bool pmix = false;          // a PMIx server of the launcher offers to carry rank 0's address
  std::string job_id;         // names the job among those of this user on this host, where the launcher has such a name
};

// What the program passed to init_process_group, or its URL said; it wins over every variable.
struct IdentityOverrides {
  std::optional<int> rank;
  std::optional<int> world_size;
};

// Reads the identity. Families in order of precedence: arguments, lockstep run, torchrun and by hand, Open MPI, alone.
// A rank is never taken from one family and the size from another.
// Throws InvalidArgument for values that are no ranks, for an incomplete family where no other is complete, and for a
// launcher that is recognised but not read yet; Mismatch if two complete families disagree, each with its variables.
Identity identify(const Environment& environment, const IdentityOverrides& overrides = {});

}  // namespace lockstep::rendezvous
