// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "runtime/rendezvous/identity/identity.h"
#include "runtime/rendezvous/meeting/pmix.h"

namespace lockstep::rendezvous {

void ask_launcher(Identity& identity, const Deadline& deadline) {
  if (!identity.size_from_pmix) return;
  std::shared_ptr<PmixSession> session = PmixSession::open();
  const PmixSession::Job job = session->job(deadline);
  if (session->rank() != identity.rank || job.size.value_or(0) <= identity.rank) {
    throw InvalidArgument(
        fmt::format("init_process_group: PMIX_RANK={} says rank {}, but the launcher's PMIx server says rank {} of {}; "
                    "start the program with `lockstep run`, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
                    identity.rank, identity.rank, session->rank(),
                    job.size ? std::to_string(*job.size) : "a number it doesn't know"));
  }
  identity.world_size = *job.size;
  identity.size_from_pmix = false;
  if (job.local_size && *job.local_size <= *job.size) {
    identity.local_world_size = *job.local_size;
    identity.local_world_size_known = true;
  }
  if (job.local_rank && *job.local_rank < job.local_size.value_or(*job.size)) {
    identity.local_rank = *job.local_rank;
    identity.local_rank_known = true;
  }
  identity.launcher_session = std::move(session);
}

}  // namespace lockstep::rendezvous
