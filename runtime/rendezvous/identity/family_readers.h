// SPDX-License-Identifier: Apache-2.0
// The readers that rows of families.cc name, and what they have in common. families_*.cc hold them, by kind.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/rendezvous/identity/families.h"

namespace lockstep::rendezvous {

// Reads rank, size and whatever else the row names, MASTER_ADDR and MASTER_PORT, and, if the row names the job, whether
// a PMIx server knows this process by the same rank. Incomplete if rank or size is not set.
Family::Reader read_world;
// Processes of this family are never ranks.
Family::Reader read_no_rank;

// Variables, and what a family needs beyond them.
Family::Reader read_torchrun, read_by_hand, read_kubeflow_pod;  // families_torch.cc
Family::Reader read_open_mpi, read_hydra, read_pmix;            // families_mpi.cc
Family::Reader read_jsrun, read_flux, read_slurm;               // families_scheduler.cc
Family::Reader read_horovod, read_mlx;                          // families_framework.cc

// --- Helpers. `names` are of variables, with spaces between.

// For problems: what always works.
inline constexpr std::string_view kByHand =
    "start the program with `lockstep run`, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT";

Reading incomplete(std::string variables, std::string problem);
// "RANK=1 WORLD_SIZE=2": the family's variables that are set, for messages.
std::string list_set(const Family& family, const Environment& environment);
// The first of `names` that is set; if none is, the first.
std::string_view first_set(const Environment& environment, std::string_view names);
std::optional<int> get_bounded(const Environment& environment, std::string_view name, std::int64_t low,
                               std::int64_t high);
// MASTER_ADDR and MASTER_PORT, as far as they are set.
void read_master(const Environment& environment, Identity& identity);
// Replacements where they are not set: a host on which rank 0 is, and a port made of the job's name.
void stand_in_for_master(Identity& identity, std::string_view host, int port, std::string_view from);
// Names the job for meetings on one host, if `job` is not empty.
void name_job(Identity& identity, const Family& family, std::string job);

}  // namespace lockstep::rendezvous
