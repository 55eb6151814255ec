// SPDX-License-Identifier: Apache-2.0
// The readers of families.h, and what they have in common. families_*.cc hold them, by kind.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/rendezvous/identity/families.h"

namespace lockstep::rendezvous {

using MaybeReading = std::optional<Reading>;

// families_torch.cc: RANK and WORLD_SIZE, and launchers that speak like torchrun
MaybeReading read_lockstep_run(const Environment& environment, const FileReader& read_file);
MaybeReading read_torchrun(const Environment& environment, const FileReader& read_file);
MaybeReading read_by_hand(const Environment& environment, const FileReader& read_file);
MaybeReading read_kubeflow_pod(const Environment& environment, const FileReader& read_file);
// families_mpi.cc: process managers of MPI libraries
MaybeReading read_open_mpi(const Environment& environment, const FileReader& read_file);
MaybeReading read_mvapich(const Environment& environment, const FileReader& read_file);
MaybeReading read_hydra(const Environment& environment, const FileReader& read_file);
MaybeReading read_pmi(const Environment& environment, const FileReader& read_file);
MaybeReading read_pmix(const Environment& environment, const FileReader& read_file);
MaybeReading read_mpi_job(const Environment& environment, const FileReader& read_file);
// families_scheduler.cc: job schedulers
MaybeReading read_pals(const Environment& environment, const FileReader& read_file);
MaybeReading read_jsrun(const Environment& environment, const FileReader& read_file);
MaybeReading read_flux(const Environment& environment, const FileReader& read_file);
MaybeReading read_slurm(const Environment& environment, const FileReader& read_file);
// families_framework.cc: launchers of other frameworks
MaybeReading read_horovod(const Environment& environment, const FileReader& read_file);
MaybeReading read_mlx(const Environment& environment, const FileReader& read_file);

// --- Helpers. Names are of variables.

// For problems: what always works.
inline constexpr std::string_view kByHand =
    "start the program with `lockstep run`, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT";
inline constexpr std::string_view kMasterVariables = "MASTER_ADDR and MASTER_PORT";

// "RANK=1 WORLD_SIZE=2": those of `names` that are set, for messages.
std::string list_set(const Environment& environment, std::initializer_list<std::string_view> names);
// The first of `names` that is set; empty if none is.
std::string_view first_set(const Environment& environment, std::initializer_list<std::string_view> names);
std::optional<int> get_bounded(const Environment& environment, std::string_view name, std::int64_t low,
                               std::int64_t high);

// The variables of the local rank and the local size; empty: the launcher has none.
struct LocalNames {
  std::string_view rank = {};
  std::string_view size = {};
};
// A reading with rank and size from the two variables; local rank, local size and read_master() as far as they are set.
// If rank or size is not set: incomplete, `remedy` says what to do.
Reading read_world(const Environment& environment, std::string_view source, std::string_view rank_name,
                   std::string_view size_name, std::string variables, std::string_view remedy,
                   const LocalNames& local = {});
// MASTER_ADDR and MASTER_PORT, as far as they are set.
void read_master(const Environment& environment, Identity& identity);
// Replacements where they are not set: a host on which rank 0 is, and a port made of the job's name.
void stand_in_for_master(Identity& identity, std::string_view host, int port, std::string_view from);
// Whether a PMIx server knows this process by the same rank.
void read_pmix_server(const Environment& environment, Identity& identity);
// Names the job for meetings on one host.
void name_job(Identity& identity, std::string_view family, std::string job);

}  // namespace lockstep::rendezvous
