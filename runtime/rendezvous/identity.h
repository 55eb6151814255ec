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
  int local_rank = 0;        // rank among those on this host
  int local_world_size = 1;  // ranks on this host
  std::optional<int> node_rank;  // index of this host, where the launcher says it; some don't
  std::string run_id;        // one name per job and attempt, where the launcher has one, else empty
  int restart_count = 0;     // how often the launcher has restarted this job
  std::string source;        // how it was known: "lockstep run", "Open MPI", "RANK and WORLD_SIZE", "alone"
  std::string ignored;       // other launchers' variables that were seen and not used, for the start line; may be empty

  // Where the job's store is, if the launcher says so.
  std::string store_address;  // LOCKSTEP_STORE, host:port: hosted by the launcher
  std::string master_addr;    // MASTER_ADDR: rank 0 hosts the store there
  int master_port = 0;        // MASTER_PORT
};

// What the program passed to init_process_group; it wins over every variable.
struct IdentityOverrides {
  std::optional<int> rank;
  std::optional<int> world_size;
};

// Reads the identity. Families in order of precedence: arguments, lockstep run, torchrun and by hand, Open MPI, ..., alone.
// Throws InvalidArgument for values that are no ranks, Mismatch if two complete families disagree, each with the
// variables printed.
Identity identify(const Environment& environment, const IdentityOverrides& overrides = {});

}  // namespace lockstep::rendezvous
