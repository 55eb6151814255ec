// SPDX-License-Identifier: Apache-2.0
#include "runtime/rendezvous/identity/families.h"

#include <algorithm>

#include "runtime/base/text.h"
#include "runtime/rendezvous/identity/family_readers.h"

namespace lockstep::rendezvous {
namespace {

using Entry = Family::Entry;
using Kind = Family::Kind;
using What = Family::What;

constexpr Entry rank(std::string_view names) { return {What::rank, names}; }
constexpr Entry size(std::string_view names) { return {What::size, names}; }
constexpr Entry local_rank(std::string_view names) { return {What::local_rank, names}; }
constexpr Entry local_size(std::string_view names) { return {What::local_size, names}; }
constexpr Entry node_rank(std::string_view names) { return {What::node_rank, names}; }
constexpr Entry restarts(std::string_view names) { return {What::restarts, names}; }
constexpr Entry job(std::string_view names) { return {What::job, names}; }
constexpr Entry ancestors(std::string_view names) { return {What::ancestors, names}; }
constexpr Entry also(std::string_view names) { return {What::also, names}; }
constexpr Entry when(std::string_view names) { return {What::when, names}; }
constexpr Entry unless(std::string_view names) { return {What::unless, names}; }
constexpr Entry source(std::string_view text) { return {What::source, text}; }

constexpr Entry kMpirunItself{
    What::remedy,
    "start the program with mpirun itself, or with `lockstep run`, or set RANK, WORLD_SIZE, MASTER_ADDR and "
    "MASTER_PORT"};
constexpr Entry kTorchRestarts = restarts("TORCHELASTIC_RESTART_COUNT");
constexpr std::string_view kPodNames =
    "PET_NNODES PET_NPROC_PER_NODE PET_NODE_RANK PET_MASTER_ADDR PET_MASTER_PORT PET_RDZV_ENDPOINT PET_RDZV_BACKEND";

// torchrun's variables, which `lockstep run` sets too, with DeepSpeed's names for the local ones.
template <typename... Entries>
constexpr Family like_torchrun(std::string_view name, Kind kind, Family::Reader& reader, Entries... more) {
  return Family(name, kind, reader, also("LOCKSTEP_STORE"), rank("RANK"), size("WORLD_SIZE"), local_rank("LOCAL_RANK"),
                local_size("LOCAL_WORLD_SIZE LOCAL_SIZE"), node_rank("GROUP_RANK CROSS_RANK"),
                also("MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID REPLICA_GROUP_ID"), when("RANK WORLD_SIZE"), more...);
}

// Variables that are left out on purpose: OMPI_COMM_WORLD_NODE_RANK is the rank on its node over all jobs, not the
// node's index, and OMPI_UNIVERSE_SIZE counts slots, not processes. I_MPI_* and HYDRA_* are settings, or describe the
// host. SLURM_NTASKS_PER_NODE is the request, not the result. A shell of Flux has variables too, but no FLUX_TASK_RANK.
// PALS and Open MPI set variables of other families for their own libraries.
constexpr Family kFamilies[] = {
    like_torchrun("lockstep run", Kind::launcher, read_world, when("LOCKSTEP_STORE")),
    like_torchrun("torchrun", Kind::launcher, read_torchrun, when("TORCHELASTIC_RUN_ID"), unless("LOCKSTEP_STORE"),
                  kTorchRestarts),
    like_torchrun("DeepSpeed's launcher", Kind::launcher, read_torchrun, when("CROSS_RANK"), when("LOCAL_SIZE"),
                  unless("LOCKSTEP_STORE"), unless("TORCHELASTIC_RUN_ID"), kTorchRestarts),
    like_torchrun("RANK and WORLD_SIZE", Kind::by_hand, read_by_hand, unless("LOCKSTEP_STORE"),
                  unless("TORCHELASTIC_RUN_ID"), unless("CROSS_RANK LOCAL_SIZE"), kTorchRestarts),
    {"Open MPI", Kind::launcher, read_open_mpi, rank("OMPI_COMM_WORLD_RANK"), size("OMPI_COMM_WORLD_SIZE"),
     local_rank("OMPI_COMM_WORLD_LOCAL_RANK"), local_size("OMPI_COMM_WORLD_LOCAL_SIZE"),
     job("PMIX_NAMESPACE OMPI_MCA_ess_base_jobid OMPI_MCA_orte_hnp_uri"), kMpirunItself},
    {"MVAPICH2", Kind::launcher, read_world, rank("MV2_COMM_WORLD_RANK"), size("MV2_COMM_WORLD_SIZE"),
     local_rank("MV2_COMM_WORLD_LOCAL_RANK"), local_size("MV2_COMM_WORLD_LOCAL_SIZE"),
     ancestors("mpispawn hydra_pmi_proxy"), kMpirunItself},
    {"PALS", Kind::scheduler, read_world, when("PALS_RANKID"), rank("PALS_RANKID"), size("PMI_SIZE"),
     local_rank("PALS_LOCAL_RANKID PMI_LOCAL_RANK MPI_LOCALRANKID"),
     local_size("PALS_LOCAL_SIZE PMI_LOCAL_SIZE MPI_LOCALNRANKS"), node_rank("PALS_NODEID"), job("PALS_APID")},
    {"Hydra", Kind::launcher, read_hydra, source("Hydra (MPICH, Intel MPI)"), when("MPI_LOCALRANKID MPI_LOCALNRANKS"),
     unless("PALS_RANKID"), unless("OMPI_COMM_WORLD_RANK"), rank("PMI_RANK PMI_ID"), size("PMI_SIZE"), also("PMI_PORT"),
     local_rank("MPI_LOCALRANKID"), local_size("MPI_LOCALNRANKS"), ancestors("hydra_pmi_proxy"), kMpirunItself},
    {"PMIx", Kind::launcher, read_pmix, when("PMIX_RANK PMIX_NAMESPACE"), unless("PALS_RANKID"), rank("PMIX_RANK"),
     job("PMIX_NAMESPACE")},
    {"LSF", Kind::scheduler, read_jsrun, source("jsrun"), rank("JSM_NAMESPACE_RANK"), size("JSM_NAMESPACE_SIZE"),
     local_rank("JSM_NAMESPACE_LOCAL_RANK"), local_size("JSM_NAMESPACE_LOCAL_SIZE"), job("LSB_JOBID")},
    {"Flux", Kind::scheduler, read_flux, when("FLUX_TASK_RANK"), rank("FLUX_TASK_RANK"), size("FLUX_JOB_SIZE"),
     local_rank("FLUX_TASK_LOCAL_ID"), also("FLUX_JOB_NNODES"), job("FLUX_JOB_ID")},
    {"Slurm", Kind::scheduler, read_slurm, source("srun"), when("SLURM_PROCID SLURM_JOB_ID"), rank("SLURM_PROCID"),
     size("SLURM_STEP_NUM_TASKS SLURM_NTASKS SLURM_NPROCS"), local_rank("SLURM_LOCALID"),
     also("SLURM_STEP_TASKS_PER_NODE SLURM_NODEID SLURM_STEP_NODELIST"), job("SLURM_JOB_ID"), also("SLURM_STEP_ID"),
     restarts("SLURM_RESTART_COUNT")},
    {"PMI", Kind::launcher, read_world, unless("MPI_LOCALRANKID"), unless("PALS_RANKID"), rank("PMI_RANK PMI_ID"),
     size("PMI_SIZE"), local_rank("PMI_LOCAL_RANK"), local_size("PMI_LOCAL_SIZE"), job("PMI_JOBID")},
    {"Horovod", Kind::launcher, read_horovod, source("horovodrun"), rank("HOROVOD_RANK"), size("HOROVOD_SIZE"),
     local_rank("HOROVOD_LOCAL_RANK"), local_size("HOROVOD_LOCAL_SIZE"), node_rank("HOROVOD_CROSS_RANK"),
     also("HOROVOD_ELASTIC")},
    {"MLX", Kind::launcher, read_mlx, source("MLX (nccl)"), when("MLX_RANK"), rank("MLX_RANK"),
     size("MLX_WORLD_SIZE MLX_HOSTFILE"), also("NCCL_HOST_IP NCCL_PORT")},
    {"Kubeflow", Kind::scheduler, read_kubeflow_pod, when(kPodNames), unless("RANK"), unless("WORLD_SIZE"),
     also(kPodNames)},
    // The ranks in the pods of an MPIJob are mpirun's; any other process there is not a rank.
    {"Kubeflow MPIJob", Kind::scheduler, read_no_rank, when("K_MPI_JOB_ROLE"), also("K_MPI_JOB_ROLE")},
};

}  // namespace

std::string_view Family::names_of(What what) const {
  const auto found = std::ranges::find(entries, what, &Entry::what);
  return found == entries.end() ? std::string_view() : found->names;
}

std::optional<Reading> Family::read(const Environment& environment, const FileReader& read_file) const {
  const auto is_set = [&](std::string_view variable) { return environment.has(variable); };
  const auto is_there = [&](const Entry& entry) {
    if (entry.what == What::when) return std::ranges::any_of(split(entry.names, ' '), is_set);
    if (entry.what == What::unless) return !std::ranges::all_of(split(entry.names, ' '), is_set);
    return true;
  };
  const bool by_rank = names_of(What::when).empty();
  const bool has_rank =
      is_set(first_set(environment, names_of(What::rank))) || is_set(first_set(environment, names_of(What::size)));
  if ((by_rank && !has_rank) || !std::ranges::all_of(entries, is_there)) return std::nullopt;
  return reader(*this, environment, read_file);
}

std::span<const Family> families() { return kFamilies; }

}  // namespace lockstep::rendezvous
