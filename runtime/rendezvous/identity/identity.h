// SPDX-License-Identifier: Apache-2.0
// This process's rank and the size of its job: read from a map of variables, as launchers set them. No sockets.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/environment.h"

namespace lockstep::rendezvous {

// A rank's knowledge of itself before it has met anybody.
struct Identity {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;            // rank among those on this host
  int local_world_size = 1;      // ranks on this host
  std::optional<int> node_rank;  // index of this host, where the launcher says it; some don't
  std::string run_id;            // one name per job and attempt, where the launcher has one, else empty
  int restart_count = 0;         // how often the launcher has restarted this job
  std::string source;            // how it was known: "lockstep run", "srun", "RANK and WORLD_SIZE", "alone"
  std::string ignored;  // other launchers' variables that were seen and not used, for the start line; may be empty

  // False: the launcher did not say, and join() fills it in from who is on this host.
  bool local_rank_known = false;
  bool local_world_size_known = false;

  // Where the job's store is, if the launcher says so.
  std::string store_address;  // LOCKSTEP_STORE, host:port: hosted by the launcher
  std::string master_addr;    // MASTER_ADDR, or what this launcher has instead: rank 0 hosts the store there
  int master_port = 0;        // MASTER_PORT, or one made of the job's name (port_of_job); 0 if unset
  std::string master_from;    // for messages, where these two are from: "MASTER_ADDR and MASTER_PORT"
  bool agent_store = false;   // torchrun's agent hosts a store at master_addr: rank 0 must not
  bool pmix = false;          // a PMIx server of the launcher offers to carry rank 0's address

  // The name of the job among those of this user on this host: the launcher's name, and its name for the job, or, for
  // launchers that have none, the programs (as /proc/PID/comm has them) of which an ancestor of every rank is one: its
  // pid names the job.
  std::string job_family;
  std::string job_id;
  std::vector<std::string> job_ancestors;

  // Only the launcher's PMIx server knows world_size, which is 1 until ask_launcher() has asked it.
  bool size_from_pmix = false;
  std::shared_ptr<void> launcher_session;  // what ask_launcher() opened; stays open as long as a copy of this lives
};

// The arguments of init_process_group, or of its URL; they win over every variable.
struct IdentityOverrides {
  std::optional<int> rank;
  std::optional<int> world_size;
};

// The text of a file that a variable names; nothing if it can't be read. Some launchers keep lists of hosts in files.
using FileReader = std::function<std::optional<std::string>(const std::string& path)>;
std::optional<std::string> read_launcher_file(const std::string& path);  // 1 MiB at most

// Reads the identity. Arguments come first, then the families of launchers in the order of families.h, then alone. A
// rank is never taken from one family and the size from another.
// Throws InvalidArgument for values that are not ranks, and for an incomplete family where no other is complete, with
// what to set; Mismatch if two complete families disagree, each with its variables. A scheduler's task may have started
// another launcher, whose word then counts: there is no disagreement with a scheduler, except for ranks set by hand,
// and for as many ranks as the scheduler has in another order.
Identity identify(const Environment& environment, const IdentityOverrides& overrides = {},
                  const FileReader& read_file = read_launcher_file);

// Asks the launcher's PMIx server for what its variables did not say (size_from_pmix); else does nothing.
// BackendUnavailable if it doesn't answer; Timeout.
void ask_launcher(Identity& identity, const Deadline& deadline);

// Ports for launchers that give the job a name and no port: below the ports that Linux gives out by itself (32768 to
// 60999), above those of most services.
inline constexpr int kFirstJobPort = 20000;
inline constexpr int kLastJobPort = 31999;

// The same on every host for the same name. Two jobs on one host may get the same one: 1 in 12,000 for each pair.
int port_of_job(std::string_view job);

}  // namespace lockstep::rendezvous
