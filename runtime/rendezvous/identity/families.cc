// SPDX-License-Identifier: Apache-2.0
#include "runtime/rendezvous/identity/families.h"

#include <array>

#include "runtime/rendezvous/identity/family_readers.h"

namespace lockstep::rendezvous {
namespace {

using Kind = Family::Kind;

constexpr std::array<Family, 16> kFamilies = {{
    {"lockstep run", Kind::launcher, read_lockstep_run},
    {"torchrun", Kind::launcher, read_torchrun},
    {"RANK and WORLD_SIZE", Kind::by_hand, read_by_hand},
    {"Open MPI", Kind::launcher, read_open_mpi},
    {"MVAPICH2", Kind::launcher, read_mvapich},
    {"PALS", Kind::scheduler, read_pals},
    {"Hydra", Kind::launcher, read_hydra},
    {"PMIx", Kind::launcher, read_pmix},
    {"LSF", Kind::scheduler, read_jsrun},
    {"Flux", Kind::scheduler, read_flux},
    {"Slurm", Kind::scheduler, read_slurm},
    {"PMI", Kind::launcher, read_pmi},
    {"Horovod", Kind::launcher, read_horovod},
    {"MLX", Kind::launcher, read_mlx},
    {"Kubeflow", Kind::scheduler, read_kubeflow_pod},
    {"Kubeflow MPIJob", Kind::scheduler, read_mpi_job},
}};

}  // namespace

std::span<const Family> families() { return kFamilies; }

}  // namespace lockstep::rendezvous
