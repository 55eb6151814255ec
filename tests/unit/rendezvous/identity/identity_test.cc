// SPDX-License-Identifier: Apache-2.0
// Variables in, verdict out: the environment of each launcher as it is (people's variables left out), launchers in one
// another, arguments, and what is no identity.
#include "runtime/rendezvous/identity/identity.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include "runtime/rendezvous/identity/slurm_lists.h"
#include "tests/support/error_of.h"

namespace lockstep::rendezvous::identity_test {
namespace {

struct Case {
  std::string name;
  std::string variables;  // "RANK=0, WORLD_SIZE=2"; the last one of a name counts
  std::string wanted;  // of the identity what describe() says, or type and message; with " ... ": parts of it, in order
  IdentityOverrides arguments = {};
};

Environment parse(std::string_view variables) {
  Environment environment;
  while (!variables.empty()) {
    const std::string_view one = variables.substr(0, variables.find(", "));
    variables.remove_prefix(std::min(variables.size(), one.size() + 2));
    environment.set(std::string(one.substr(0, one.find('='))), std::string(one.substr(one.find('=') + 1)));
  }
  return environment;
}

// Files that variables of the cases name.
std::optional<std::string> test_files(const std::string& path) {
  if (path == "/job/ring.json") return R"([["10.0.0.1:5000", "10.1.0.1:5000"], ["10.0.0.2:5000"], ["10.0.0.3:5000"]])";
  if (path == "/job/flat.json") return R"(["10.0.0.1:5000", "10.0.0.2:5000"])";
  if (path == "/job/objects.json") return R"([{"ssh": "a"}])";
  if (path == "/job/numbers.json") return R"(["10.0.0.1:5000", 7])";
  if (path == "/job/empty.json") return "[[], []]";
  if (path == "/job/rankfile") return "batch1\nc02n03\nc02n03\nc02n04\nc02n04\n";
  return std::nullopt;
}

// Whatever is known. A port that the variables don't say, made of the job's name, is "*".
std::string describe(const Identity& identity, std::string_view variables) {
  std::string text = fmt::format("{} {}/{}", identity.source, identity.rank, identity.world_size);
  const auto add = [&](bool known, std::string_view name, const auto& value) {
    if (known) text += fmt::format(" {} {}", name, value);
  };
  add(identity.local_rank_known, "local", identity.local_rank);
  add(identity.local_world_size_known, "of", identity.local_world_size);
  add(identity.node_rank.has_value(), "node", identity.node_rank.value_or(0));
  add(!identity.run_id.empty(), "run", identity.run_id);
  add(identity.restart_count != 0, "restart", identity.restart_count);
  add(!identity.store_address.empty(), "store", identity.store_address);
  const std::string port = std::to_string(identity.master_port);
  const bool derived = identity.master_port >= kFirstJobPort && identity.master_port <= kLastJobPort &&
                       variables.find(port) == variables.npos;
  add(!identity.master_addr.empty() || identity.master_port != 0, "at",
      fmt::format("{}:{}", identity.master_addr, derived ? "*" : port));
  add(identity.agent_store, "agent's", "store");
  add(!identity.job_family.empty(), "job", fmt::format("{}/{}", identity.job_family, identity.job_id));
  for (const std::string& ancestor : identity.job_ancestors) add(true, "below", ancestor);
  add(identity.pmix, "pmix", identity.size_from_pmix ? "(size too)" : "(address)");
  add(!identity.ignored.empty(), "ignoring", identity.ignored);
  return text;
}

std::string outcome(const Case& test) {
  std::string text;
  const std::string error = testing::outcome_of(
      [&] { text = describe(identify(parse(test.variables), test.arguments, test_files), test.variables); });
  return text.empty() ? error : text;
}

const std::string kTorchrun =
    "RANK=5, LOCAL_RANK=1, WORLD_SIZE=8, LOCAL_WORLD_SIZE=4, GROUP_RANK=1, GROUP_WORLD_SIZE=2, ROLE_RANK=5, "
    "ROLE_WORLD_SIZE=8, ROLE_NAME=default, MASTER_ADDR=n0, MASTER_PORT=29500, TORCHELASTIC_RESTART_COUNT=0, "
    "TORCHELASTIC_MAX_RESTARTS=3, TORCHELASTIC_RUN_ID=none, TORCHELASTIC_USE_AGENT_STORE=False, "
    "TORCHELASTIC_ERROR_FILE=/tmp/torchelastic_x/error.json, NCCL_ASYNC_ERROR_HANDLING=1, OMP_NUM_THREADS=1";
const std::string kOpenMpi =
    "OMPI_COMM_WORLD_RANK=2, OMPI_COMM_WORLD_SIZE=4, OMPI_COMM_WORLD_LOCAL_RANK=0, OMPI_COMM_WORLD_LOCAL_SIZE=2, "
    "OMPI_COMM_WORLD_NODE_RANK=0, OMPI_UNIVERSE_SIZE=128, OMPI_MCA_orte_hnp_uri=86409216.0;tcp://10.0.0.1:39137, "
    "OMPI_MCA_ess_base_jobid=86409217";
const std::string kPmix = ", PMIX_NAMESPACE=86409217, PMIX_RANK=2, PMIX_SERVER_URI3=86409216.0;tcp4://127.0.0.1:46529";
const std::string kNoList = " holds no list in JSON ... lockstep run";

const Case kLaunchers[] = {
    {"Nothing", "", "alone 0/1"},
    {"MasterAddressAlone", "MASTER_ADDR=n0", "alone 0/1"},
    {"LockstepRun",
     "RANK=3, WORLD_SIZE=4, LOCAL_RANK=1, LOCAL_WORLD_SIZE=2, GROUP_RANK=1, MASTER_ADDR=127.0.0.1, MASTER_PORT=40123, "
     "LOCKSTEP_STORE=10.0.0.1:41233, LOCKSTEP_STORE_SECRET=00, LOCKSTEP_RUN_ID=f00d, LOCKSTEP_RESTART_COUNT=3, "
     "LOCKSTEP_LAUNCHER_PID=77, TORCHELASTIC_RUN_ID=f00d",
     "lockstep run 3/4 local 1 of 2 node 1 run f00d restart 3 store 10.0.0.1:41233 at 127.0.0.1:40123"},
    {"LockstepStoreOfByHand", "RANK=1, WORLD_SIZE=2, LOCKSTEP_STORE=10.0.0.1:41233",
     "lockstep run 1/2 store 10.0.0.1:41233"},
    {"Torchrun", kTorchrun, "torchrun 5/8 local 1 of 4 node 1 run none at n0:29500"},
    {"TorchrunsRestartAndAgentStore", kTorchrun + ", TORCHELASTIC_RESTART_COUNT=2, TORCHELASTIC_USE_AGENT_STORE=True",
     "torchrun 5/8 local 1 of 4 node 1 run none restart 2 at n0:29500 agent's store"},
    {"DeepSpeed",
     "RANK=9, WORLD_SIZE=16, LOCAL_RANK=1, LOCAL_SIZE=8, CROSS_RANK=1, CROSS_SIZE=2, MASTER_ADDR=worker-0, "
     "MASTER_PORT=29500",
     "DeepSpeed's launcher 9/16 local 1 of 8 node 1 at worker-0:29500"},
    {"DeepSpeedBelowTorchrun", "CROSS_RANK=1, LOCAL_SIZE=4, " + kTorchrun,
     "torchrun 5/8 local 1 of 4 node 1 run none at n0:29500"},
    {"DeepSpeedBelowLockstepRun", "RANK=1, WORLD_SIZE=4, CROSS_RANK=1, LOCAL_SIZE=1, LOCKSTEP_STORE=10.0.0.1:41233",
     "lockstep run 1/4 of 1 node 1 store 10.0.0.1:41233"},
    {"Torchft",
     "RANK=1, WORLD_SIZE=2, LOCAL_RANK=1, LOCAL_WORLD_SIZE=2, GROUP_RANK=0, MASTER_ADDR=localhost, MASTER_PORT=29601, "
     "TORCHELASTIC_RUN_ID=none, TORCHFT_LIGHTHOUSE=http://localhost:29510, TORCHFT_MANAGER_PORT=29512, "
     "REPLICA_GROUP_ID=1, NUM_REPLICA_GROUPS=2",
     "torchrun, torchft's replica group 1 1/2 local 1 of 2 node 0 run none/replica 1 at localhost:29601"},
    {"ByHand", "RANK=1, WORLD_SIZE=2, MASTER_ADDR=127.0.0.1, MASTER_PORT=23456",
     "RANK and WORLD_SIZE 1/2 at 127.0.0.1:23456"},
    {"ByHandLikeTorchrun",
     "RANK=3, WORLD_SIZE=4, LOCAL_RANK=1, LOCAL_WORLD_SIZE=2, GROUP_RANK=1, TORCHELASTIC_RESTART_COUNT=2, "
     "TORCHELASTIC_USE_AGENT_STORE=True",
     "RANK and WORLD_SIZE 3/4 local 1 of 2 node 1 restart 2 agent's store"},
    {"MasterAddressInBrackets", "RANK=1, WORLD_SIZE=2, MASTER_ADDR=[::1]", "RANK and WORLD_SIZE 1/2 at ::1:0"},
    {"MasterAddressWithAZone", "RANK=1, WORLD_SIZE=2, MASTER_ADDR=[fe80::1%eth0]",
     "RANK and WORLD_SIZE 1/2 at fe80::1%eth0:0"},
    {"OpenMpi", kOpenMpi + kPmix, "Open MPI 2/4 local 0 of 2 run 86409217 job Open MPI/86409217 pmix (address)"},
    {"OpenMpiWithoutPmix", kOpenMpi, "Open MPI 2/4 local 0 of 2 run 86409217 job Open MPI/86409217"},
    {"OpenMpiWithHydrasLocalRank", kOpenMpi + ", MPI_LOCALRANKID=0, MPI_LOCALNRANKS=2",
     "Open MPI 2/4 local 0 of 2 run 86409217 job Open MPI/86409217"},
    {"OpenMpi5",
     "OMPI_COMM_WORLD_RANK=2, OMPI_COMM_WORLD_SIZE=4, OMPI_COMM_WORLD_LOCAL_RANK=0, OMPI_COMM_WORLD_LOCAL_SIZE=2, "
     "OMPI_COMM_WORLD_NODE_RANK=0, OMPI_WORLD_SIZE=4, OMPI_WORLD_LOCAL_SIZE=2, OMPI_UNIVERSE_SIZE=4, "
     "OMPI_MCA_num_procs=4, OMPI_VERSION=5.0.11, PMIX_NAMESPACE=prterun-host1-36@1, PMIX_RANK=2, PMIX_HOSTNAME=host2, "
     "PMIX_SERVER_URI41=prterun-host1-36@0.1;tcp4://127.0.0.1:47671, PRTE_LAUNCHED=1",
     "Open MPI 2/4 local 0 of 2 run prterun-host1-36@1 job Open MPI/prterun-host1-36@1 pmix (address)"},
    {"AzureMl",
     kOpenMpi + ", AZ_BATCH_MASTER_NODE=10.0.0.4:6000, AZ_BATCHAI_MPI_MASTER_NODE=10.0.0.4, AZUREML_RUN_ID=exp_1",
     "Open MPI 2/4 local 0 of 2 run 86409217 at 10.0.0.4:6000 job Open MPI/86409217"},
    {"AzureMlWithoutAPort", kOpenMpi + ", AZ_BATCHAI_MPI_MASTER_NODE=10.0.0.4, AZUREML_RUN_ID=exp_1",
     "Open MPI 2/4 local 0 of 2 run 86409217 at 10.0.0.4:* job Open MPI/86409217"},
    {"AzureMlsNameThatIsNoHost", kOpenMpi + ", AZ_BATCH_MASTER_NODE=10.0.0.4:port",
     "Open MPI 2/4 local 0 of 2 run 86409217 job Open MPI/86409217"},
    {"KubeflowMpiJobsRank",
     kOpenMpi + ", K_MPI_JOB_ROLE=launcher, OMPI_MCA_orte_default_hostfile=/etc/mpi/hostfile, "
                "OMPI_MCA_orte_keep_fqdn_hostnames=true, OMPI_MCA_plm_rsh_args=-o ConnectionAttempts=10",
     "Open MPI 2/4 local 0 of 2 run 86409217 job Open MPI/86409217 ignoring Kubeflow MPIJob (K_MPI_JOB_ROLE=launcher)"},
    {"KubeflowMpiJobsLauncherPod",
     "K_MPI_JOB_ROLE=launcher, OMPI_MCA_orte_default_hostfile=/etc/mpi/hostfile, HYDRA_HOST_FILE=/etc/mpi/hostfile, "
     "I_MPI_HYDRA_HOST_FILE=/etc/mpi/hostfile, I_MPI_PERHOST=1",
     "alone 0/1 ignoring Kubeflow MPIJob (K_MPI_JOB_ROLE=launcher)"},
    {"Mvapich2",
     "MV2_COMM_WORLD_RANK=3, MV2_COMM_WORLD_SIZE=4, MV2_COMM_WORLD_LOCAL_RANK=1, MV2_COMM_WORLD_LOCAL_SIZE=2, "
     "PMI_ID=3, PMI_PORT=node0:33211, MPISPAWN_ID=1",
     "MVAPICH2 3/4 local 1 of 2 job MVAPICH2/ below mpispawn below hydra_pmi_proxy ignoring PMI (PMI_ID=3)"},
    {"Mpich",
     "PMI_RANK=1, PMI_SIZE=2, PMI_FD=8, MPI_LOCALRANKID=1, MPI_LOCALNRANKS=2, HYDI_CONTROL_FD=7, "
     "MPIR_CVAR_CH3_INTERFACE_HOSTNAME=node0",
     "Hydra (MPICH, Intel MPI) 1/2 local 1 of 2 job Hydra/ below hydra_pmi_proxy"},
    {"IntelMpi2021",
     "HYDRA_BSTRAP_LAUNCHER=ssh, HYDRA_BSTRAP_LOCALHOST=host2, HYDRA_BSTRAP_NODE_ID=1, HYDRA_BSTRAP_PROXY_ID=1, "
     "HYDRA_BSTRAP_PGID=0, I_MPI_HYDRA_UUID=471b0000-c78d-6421-6761-06000dc67648, I_MPI_INFO_LCPU=2, "
     "I_MPI_MPIRUN=mpirun, I_MPI_PIN_INFO=1, PMI_FD=11, PMI_RANK=3, PMI_SIZE=4, MPI_LOCALRANKID=1, MPI_LOCALNRANKS=2",
     "Hydra (MPICH, Intel MPI) 3/4 local 1 of 2 job Hydra/ below hydra_pmi_proxy"},
    {"CrayPals",
     "PALS_RANKID=13, PALS_NODEID=1, PALS_LOCAL_RANKID=1, PALS_LOCAL_SIZE=12, PALS_APID=8a1b-42, PALS_DEPTH=8, "
     "PALS_SPOOL_DIR=/var/run/palsd/8a1b, PMI_RANK=13, PMI_SIZE=24, PMI_LOCAL_RANK=1, PMI_LOCAL_SIZE=12, "
     "MPI_LOCALRANKID=1, MPI_LOCALNRANKS=12, PMIX_RANK=13",
     "PALS 13/24 local 1 of 12 node 1 run 8a1b-42 job PALS/8a1b-42"},
    {"PalsWithPmisRank", "PALS_RANKID=1, PMI_RANK=1, PMI_SIZE=4", "PALS 1/4"},
    {"Jsrun",
     "JSM_NAMESPACE_RANK=7, JSM_NAMESPACE_SIZE=12, JSM_NAMESPACE_LOCAL_RANK=1, JSM_NAMESPACE_LOCAL_SIZE=6, "
     "LSB_JOBID=1100, LSB_HOSTS=batch1 c02n03 c02n03 c02n04 c02n04",
     "jsrun 7/12 local 1 of 6 run 1100/ at c02n03:* job LSF/1100/"},
    {"JsrunWithARankFile",
     "JSM_NAMESPACE_RANK=0, JSM_NAMESPACE_SIZE=4, LSB_JOBID=1100, LSB_DJOB_RANKFILE=/job/rankfile, LSB_HOSTS=elsewhere",
     "jsrun 0/4 run 1100/ at c02n03:* job LSF/1100/"},
    {"JsrunOfOneSlotPerHost", "JSM_NAMESPACE_RANK=0, JSM_NAMESPACE_SIZE=2, LSB_HOSTS=c1 c2", "jsrun 0/2 at c1:*"},
    {"Flux",
     "FLUX_URI=local:///run/flux/local, FLUX_JOB_ID=f2a9yUvF, FLUX_JOB_NNODES=1, FLUX_JOB_SIZE=4, "
     "FLUX_TASK_LOCAL_ID=2, FLUX_TASK_RANK=2, PMI_FD=12, PMI_RANK=2, PMI_SIZE=4",
     "Flux 2/4 local 2 of 4 run f2a9yUvF job Flux/f2a9yUvF ignoring PMI (PMI_RANK=2 PMI_SIZE=4)"},
    {"FluxsShell", "FLUX_URI=local:///run/flux/local, FLUX_JOB_ID=f2a9yUvF, FLUX_JOB_SIZE=4", "alone 0/1"},
    {"Srun",
     "SLURM_JOB_ID=4711, SLURM_JOBID=4711, SLURM_JOB_NODELIST=n[10,20-25],m3, SLURM_NODELIST=n[10,20-25],m3, "
     "SLURM_JOB_NUM_NODES=8, SLURM_LAUNCH_NODE_IPADDR=192.168.0.1, SLURM_LOCALID=1, SLURM_NODEID=2, SLURM_NTASKS=99, "
     "SLURM_NPROCS=99, SLURM_NTASKS_PER_NODE=50, SLURM_PROCID=9, SLURM_STEP_ID=1, SLURM_STEP_NODELIST=n[20-22], "
     "SLURM_STEP_NUM_NODES=3, SLURM_STEP_NUM_TASKS=11, SLURM_STEP_TASKS_PER_NODE=4(x2),3, "
     "SLURM_TASKS_PER_NODE=4(x8), SLURM_CPUS_PER_TASK=8, SLURMD_NODENAME=n22, SLURM_RESTART_COUNT=1",
     "srun 9/11 local 1 of 3 node 2 run 4711.1 restart 1 at n20:* job Slurm/4711.1"},
    {"SrunWithPmix",
     "SLURM_JOB_ID=4711, SLURM_LOCALID=1, SLURM_NODEID=0, SLURM_PROCID=1, SLURM_STEP_ID=0, SLURM_STEP_NODELIST=n20, "
     "SLURM_STEP_NUM_TASKS=2, SLURM_STEP_TASKS_PER_NODE=2, SLURM_MPI_TYPE=pmix, "
     "SLURM_PMIX_MAPPING_SERV=(vector,(0,1,2)), PMIX_NAMESPACE=slurm.pmix.4711.0, PMIX_RANK=1",
     "srun 1/2 local 1 of 2 node 0 run 4711.0 at n20:* job Slurm/4711.0 pmix (address)"},
    {"SrunOnACray",
     "SLURM_JOB_ID=4711, SLURM_LOCALID=0, SLURM_NODEID=1, SLURM_PROCID=1, SLURM_STEP_ID=0, "
     "SLURM_STEP_NODELIST=nid[000010-000011], SLURM_STEP_NUM_TASKS=2, SLURM_STEP_TASKS_PER_NODE=1(x2), "
     "PALS_APID=4711.0, PALS_RANKID=1, PALS_NODEID=1, PMI_JOBID=4711",
     "srun 1/2 local 0 of 1 node 1 run 4711.0 at nid000010:* job Slurm/4711.0 "
     "ignoring PALS (PALS_RANKID=1 PALS_NODEID=1 PALS_APID=4711.0)"},
    {"SlurmsBatchScript", "SLURM_JOB_ID=4711, SLURM_PROCID=0, SLURM_NTASKS=50000, SLURM_LOCALID=0",
     "alone 0/1 ignoring Slurm (SLURM_PROCID=0 SLURM_NTASKS=50000 SLURM_LOCALID=0 SLURM_JOB_ID=4711)"},
    {"Pmi", "PMI_RANK=1, PMI_SIZE=4", "PMI 1/4"},
    {"WorldSizeAtTheLimit", "RANK=0, WORLD_SIZE=32768", "RANK and WORLD_SIZE 0/32768"},
    {"PmiWithAJob", "PMI_RANK=1, PMI_SIZE=4, PMI_JOBID=77, PMI_LOCAL_RANK=1, PMI_LOCAL_SIZE=2",
     "PMI 1/4 local 1 of 2 run 77 job PMI/77"},
    {"Horovod",
     "HOROVOD_HOSTNAME=n1, HOROVOD_RANK=2, HOROVOD_SIZE=4, HOROVOD_LOCAL_RANK=0, HOROVOD_LOCAL_SIZE=2, "
     "HOROVOD_CROSS_RANK=1, HOROVOD_CROSS_SIZE=2, HOROVOD_GLOO_RENDEZVOUS_ADDR=10.0.0.1, "
     "HOROVOD_GLOO_RENDEZVOUS_PORT=33001, HOROVOD_GLOO_IFACE=eth0, HOROVOD_CONTROLLER=gloo, "
     "HOROVOD_CPU_OPERATIONS=gloo",
     "horovodrun 2/4 local 0 of 2 node 1 run 10.0.0.1:33001 job Horovod/10.0.0.1:33001"},
    {"MlxNccl", "MLX_RANK=1, MLX_WORLD_SIZE=2, NCCL_HOST_IP=10.0.0.1, NCCL_PORT=12345, CUDA_VISIBLE_DEVICES=1",
     "MLX (nccl) 1/2 at 10.0.0.1:12345"},
    {"MlxRing", "MLX_RANK=2, MLX_HOSTFILE=/job/ring.json, MLX_RING_VERBOSE=1", "MLX (ring) 2/3 at 10.0.0.1:5000"},
    {"MlxRingWithAFlatList", "MLX_RANK=1, MLX_HOSTFILE=/job/flat.json", "MLX (ring) 1/2 at 10.0.0.1:5000"},
    {"PyTorchJobWithOneProcessPerPod",
     "PYTHONUNBUFFERED=1, MASTER_ADDR=job-master-0, MASTER_PORT=23456, WORLD_SIZE=2, RANK=1, "
     "PET_MASTER_ADDR=job-master-0, PET_MASTER_PORT=23456, PET_NPROC_PER_NODE=1, PET_NNODES=2, PET_NODE_RANK=1",
     "RANK and WORLD_SIZE 1/2 at job-master-0:23456"},
    {"TrainJobsPodOfOneProcess", "PET_NNODES=1, PET_NPROC_PER_NODE=1, PET_NODE_RANK=0",
     "alone 0/1 ignoring Kubeflow (PET_NNODES=1 PET_NPROC_PER_NODE=1 PET_NODE_RANK=0)"},
    {"PmixWithoutASize", "PMIX_RANK=3, PMIX_NAMESPACE=prterun-n1-99@1",
     "PMIx 3/1 run prterun-n1-99@1 job PMIx/prterun-n1-99@1 pmix (size too)"},
};

const std::string kByHand = "RANK=2, WORLD_SIZE=4, ";
const std::string kLockstepTask = "RANK=0, WORLD_SIZE=1, LOCKSTEP_STORE=127.0.0.1:4000, ";

const std::string kBatchScript =
    "SLURM_JOB_ID=12, SLURM_NTASKS=8, SLURM_NPROCS=8, SLURM_NNODES=2, SLURM_PROCID=0, SLURM_LOCALID=0, "
    "SLURM_NODEID=0, SLURM_TASKS_PER_NODE=4(x2), SLURM_NODELIST=n[1-2]";
const std::string kTask =
    "SLURM_JOB_ID=12, SLURM_STEP_ID=0, SLURM_PROCID=1, SLURM_LOCALID=1, SLURM_NODEID=0, SLURM_STEP_NUM_TASKS=8, "
    "SLURM_STEP_TASKS_PER_NODE=4(x2), SLURM_STEP_NODELIST=n[1-2]";
const std::string kOneTask =
    kTask + ", SLURM_PROCID=0, SLURM_LOCALID=0, SLURM_STEP_NUM_TASKS=1, SLURM_STEP_TASKS_PER_NODE=1";

const Case kSeveral[] = {
    {"TwoThatAgreeAreNamedAndTheSecondFillsInWhatTheFirstLeavesOpen", kByHand + kOpenMpi + kPmix,
     "RANK and WORLD_SIZE 2/4 local 0 of 2 run 86409217 job Open MPI/86409217 pmix (address) "
     "ignoring Open MPI (OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=0 "
     "OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=86409217)"},
    {"AnExportedAddressIsWhereTheyMeet", kByHand + "MASTER_ADDR=n0, MASTER_PORT=1, " + kOpenMpi + kPmix,
     "RANK and WORLD_SIZE 2/4 local 0 of 2 at n0:1 ignoring Open MPI (OMPI_COMM_WORLD_RANK=2 ... "},
    {"TwoThatDisagreeStopWithBothPrinted", "RANK=0, WORLD_SIZE=4, " + kOpenMpi,
     "Mismatch: ... RANK and WORLD_SIZE says rank 0/4 (RANK=0 WORLD_SIZE=4), Open MPI says rank 2/4 "
     "(OMPI_COMM_WORLD_RANK=2 ... unset the other's variables"},
    {"MpirunInsideLockstepRun", kLockstepTask + kOpenMpi,
     "Mismatch: ... lockstep run says rank 0/1 ... Open MPI says rank 2/4"},
    {"ARankIsNeverMixedWithAnotherFamilysSize", "RANK=0, " + kOpenMpi,
     "Open MPI 2/4 local 0 of 2 run 86409217 job Open MPI/86409217 ignoring RANK and WORLD_SIZE (RANK=0)"},
    {"LockstepsVariablesOutrankALaunchers", "LOCKSTEP_STORE=node0:4000, LOCKSTEP_RUN_ID=mine, " + kOpenMpi,
     "Open MPI 2/4 local 0 of 2 run mine store node0:4000 job Open MPI/86409217"},
    // A batch script and the shell of salloc are no tasks of srun.
    {"SallocsShell", kBatchScript + ", SLURM_STEP_ID=4294967290, SLURM_STEP_NUM_TASKS=1",
     "alone 0/1 ... ignoring Slurm (SLURM_PROCID=0"},
    {"SallocsShellWithoutTasks", kBatchScript + ", SLURM_STEP_ID=4294967290", "alone 0/1 ... ignoring Slurm"},
    {"SrunInABatchScript", kBatchScript + ", " + kTask, "srun 1/8 local 1 of 4 node 0 run 12.0 at n1:* job Slurm/12.0"},
    {"OneTaskOfSruns", kBatchScript + ", " + kOneTask, "srun 0/1 local 0 of 1 node 0 run 12.0 at n1:* job Slurm/12.0"},
    {"SrunWithoutANodeList", kTask + ", SLURM_STEP_NODELIST=, SLURM_LAUNCH_NODE_IPADDR=192.168.7.7",
     "srun 1/8 local 1 of 4 node 0 run 12.0 job Slurm/12.0"},
    // What srun said is of its one task, or of a daemon on each host, and its plug-ins' names are inherited too.
    {"OpenMpiUnderDaemonsOfSruns", kOneTask + ", SLURM_STEP_NUM_TASKS=2, " + kOpenMpi,
     "Open MPI 2/4 local 0 of 2 run 86409217 job Open MPI/86409217 ignoring Slurm (SLURM_PROCID=0 ... "},
    {"HorovodInATaskOfSruns", kOneTask + ", HOROVOD_RANK=3, HOROVOD_SIZE=4",
     "horovodrun 3/4 ... ignoring Slurm (SLURM_PROCID=0"},
    {"MlxInATaskOfSruns", kOneTask + ", MLX_RANK=3, MLX_WORLD_SIZE=4", "MLX (nccl) 3/4 ... ignoring Slurm"},
    {"PmiInATaskOfSruns", kOneTask + ", PMI_RANK=3, PMI_SIZE=4", "PMI 3/4 ... ignoring Slurm"},
    {"HorovodInATaskOfSrunsWithPlugins",
     kOneTask + ", PMI_RANK=0, PMI_SIZE=1, PMIX_RANK=0, PMIX_NAMESPACE=slurm.1.0, HOROVOD_RANK=3, HOROVOD_SIZE=4",
     "horovodrun 3/4 ... "},
    {"HorovodUnderDaemonsOfSruns", kTask + ", SLURM_STEP_NUM_TASKS=2, HOROVOD_RANK=5, HOROVOD_SIZE=8",
     "horovodrun 5/8 ... "},
    {"HorovodOfAsManyRanksInAnotherOrder", kTask + ", HOROVOD_RANK=3, HOROVOD_SIZE=8",
     "Mismatch: ... srun says rank 1/8 ... horovodrun says rank 3/8"},
    {"SrunsPmiPlugin", kTask + ", PMI_RANK=1, PMI_SIZE=8, PMI_FD=5",
     "srun 1/8 local 1 of 4 node 0 run 12.0 at n1:* ... "},
    {"PmiThatSaysOtherwiseThanSrun", kTask + ", PMI_RANK=3, PMI_SIZE=8",
     "Mismatch: ... srun says rank 1/8 ... PMI says rank 3/8"},
    {"RankExportedWhereSrunIsCalled", kTask + ", RANK=0, WORLD_SIZE=8",
     "Mismatch: ... RANK and WORLD_SIZE says rank 0/8 ... srun says rank 1/8"},
    {"TorchrunInATaskOfSruns", kTask + ", RANK=5, WORLD_SIZE=16, TORCHELASTIC_RUN_ID=x", "torchrun 5/16 ... "},
    {"LockstepRunInATaskOfSruns", kTask + ", RANK=5, WORLD_SIZE=16, LOCKSTEP_STORE=h:1",
     "lockstep run 5/16 ... ignoring Slurm (SLURM_PROCID=1"},
    {"TwoThatDisagreeInTheirSize", kOpenMpi + ", HOROVOD_RANK=2, HOROVOD_SIZE=8",
     "Mismatch: ... Open MPI says rank 2/4 ... horovodrun says rank 2/8 (HOROVOD_RANK=2"},
    // A pod of a PyTorchJob has RANK of its own, and so do processes that a launcher has started in the pod.
    {"TorchrunInAPod", "RANK=1, WORLD_SIZE=16, PET_NPROC_PER_NODE=8, LOCAL_RANK=1, TORCHELASTIC_RUN_ID=x",
     "torchrun 1/16 ... "},
    {"LockstepRunInAPod", "RANK=1, WORLD_SIZE=16, PET_NPROC_PER_NODE=8, LOCAL_RANK=1, LOCKSTEP_STORE=h:1",
     "lockstep run 1/16 ... "},
    {"OpenMpiInATaskOfPals", kOpenMpi + ", PALS_RANKID=0, PMI_SIZE=1",
     "Open MPI 2/4 local 0 of 2 run 86409217 job Open MPI/86409217 ignoring PALS (PALS_RANKID=0 PMI_SIZE=1)"},
    {"OpenMpiInATaskOfJsrun", kOpenMpi + ", JSM_NAMESPACE_RANK=0, JSM_NAMESPACE_SIZE=1",
     "Open MPI 2/4 local 0 of 2 run 86409217 job Open MPI/86409217 ignoring LSF (JSM_NAMESPACE_RANK=0 "
     "JSM_NAMESPACE_SIZE=1)"},
    {"OpenMpiInATaskOfFlux", kOpenMpi + ", FLUX_TASK_RANK=0, FLUX_JOB_SIZE=1",
     "Open MPI 2/4 local 0 of 2 run 86409217 job Open MPI/86409217 ignoring Flux (FLUX_TASK_RANK=0 FLUX_JOB_SIZE=1)"},
    {"ArgumentsWin",
     kTorchrun,
     "arguments 0/2 run none at n0:29500 ignoring torchrun (RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 "
     "GROUP_RANK=1 MASTER_ADDR=n0 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=none)",
     {0, 2}},
    {"ArgumentsWinOverLockstepRun",
     kLockstepTask,
     "arguments 0/2 store 127.0.0.1:4000 ignoring lockstep run (LOCKSTEP_STORE=127.0.0.1:4000 RANK=0 WORLD_SIZE=1)",
     {0, 2}},
    {"ArgumentsThatSayTheSameKeepWhatTheLauncherKnows",
     kTorchrun,
     "arguments 5/8 local 1 of 4 node 1 run none at n0:29500",
     {5, 8}},
    {"ArgumentsMeetAtTheExportedAddress", "MASTER_ADDR=n0, MASTER_PORT=29500", "arguments 0/2 at n0:29500", {0, 2}},
    {"ArgumentsIgnoreABadAddress", "MASTER_ADDR=n0, MASTER_PORT=x", "arguments 0/2 at n0:0", {0, 2}},
    {"ArgumentsIgnoreABadRank", "RANK=x, WORLD_SIZE=2", "arguments 0/2", {0, 2}},
    {"ArgumentsAreNotAskedOfAPmixServer",
     "PMIX_RANK=0, PMIX_NAMESPACE=77",
     "arguments 0/4 run 77 ignoring PMIx (PMIX_RANK=0 PMIX_NAMESPACE=77)",
     {0, 4}},
    {"ArgumentsOfOneRankAreNotAskedOfAPmixServer",
     "PMIX_RANK=0, PMIX_NAMESPACE=77",
     "arguments 0/1 run 77 job PMIx/77 pmix (address)",
     {0, 1}},
};

const std::string kInvalid = "InvalidArgument: ... ";

const Case kRefused[] = {
    {"MasterAddressWithHalfABracket", kByHand + "MASTER_ADDR=[::1",
     kInvalid + "environment: MASTER_ADDR: host '[::1' ... write only a name"},
    {"MasterAddressWithAPort", kByHand + "MASTER_ADDR=n0:29500", kInvalid + "host 'n0:29500' ... write only a name"},
    {"MasterPort", kTorchrun + ", MASTER_PORT=70000", kInvalid + "MASTER_PORT=70000"},
    {"WorldSizeAboveTheLimit", "RANK=0, WORLD_SIZE=32769",
     kInvalid + "WORLD_SIZE=32769 ... it must be from 1 to 32768"},
    {"WorldSizeZero", "RANK=0, WORLD_SIZE=0", kInvalid + "WORLD_SIZE=0"},
    {"RankOutside", "RANK=4, WORLD_SIZE=4", kInvalid + "RANK=4 with WORLD_SIZE=4: ranks of this world are 0 to 3"},
    {"RankThatIsNoNumber", "RANK=x, WORLD_SIZE=4", kInvalid + "RANK='x'"},
    {"LocalRank", kTorchrun + ", LOCAL_RANK=4", kInvalid + "LOCAL_RANK=4"},
    {"LocalWorldSize", kTorchrun + ", LOCAL_WORLD_SIZE=9", kInvalid + "LOCAL_WORLD_SIZE=9"},
    {"RestartCount", kTorchrun + ", TORCHELASTIC_RESTART_COUNT=-1", kInvalid + "TORCHELASTIC_RESTART_COUNT=-1"},
    {"LockstepsRestartCount", kOpenMpi + ", LOCKSTEP_RESTART_COUNT=-1", kInvalid + "LOCKSTEP_RESTART_COUNT=-1"},
    {"OpenMpisRankOutside", kOpenMpi + ", OMPI_COMM_WORLD_RANK=4",
     kInvalid + "OMPI_COMM_WORLD_RANK=4 with OMPI_COMM_WORLD_SIZE=4"},
    {"MlxsRankOutsideItsFile", "MLX_RANK=5, MLX_HOSTFILE=/job/ring.json", kInvalid + "MLX_RANK=5"},
    {"RankAlone", "RANK=1",
     kInvalid + "RANK is set but WORLD_SIZE is not (RANK=1) ... MASTER_ADDR ... unset RANK to run alone"},
    {"WorldSizeAlone", "WORLD_SIZE=4",
     kInvalid + "WORLD_SIZE is set but RANK is not (WORLD_SIZE=4) ... unset WORLD_SIZE"},
    {"LockstepStoreAlone", "LOCKSTEP_STORE=127.0.0.1:4000",
     kInvalid + "LOCKSTEP_STORE=127.0.0.1:4000 is set but RANK and WORLD_SIZE are not"},
    {"OpenMpisRankAlone", "OMPI_COMM_WORLD_RANK=1",
     kInvalid + "OMPI_COMM_WORLD_SIZE is not ... with mpirun itself ... to run alone"},
    {"HydraInPortMode", "PMI_ID=3, PMI_PORT=node0:33211, MPI_LOCALRANKID=1",
     kInvalid + "Hydra in port mode ... (PMI_ID=3 PMI_PORT=node0:33211 MPI_LOCALRANKID=1); start it without -pmi-port"},
    {"HydrasLocalRankAlone", "MPI_LOCALRANKID=1",
     kInvalid + "MPI_LOCALRANKID=1 is set but PMI_RANK and PMI_SIZE are not ... to run alone"},
    {"JsrunsRankAlone", "JSM_NAMESPACE_RANK=1, LSB_JOBID=1100",
     kInvalid + "JSM_NAMESPACE_SIZE is not (JSM_NAMESPACE_RANK=1 LSB_JOBID=1100) ... to run alone"},
    {"MlxsRankAlone", "MLX_RANK=0, NCCL_PORT=1",
     kInvalid + "MLX_RANK=0 NCCL_PORT=1 is set but neither MLX_WORLD_SIZE nor MLX_HOSTFILE is; start the program with "
                "mlx.launch"},
    {"PmixsRankAlone", "PMIX_RANK=1", kInvalid + "PMIX_NAMESPACE is not ... to run alone"},
    {"PmixsNamespaceAlone", "PMIX_NAMESPACE=x", kInvalid + "PMIX_RANK is not ... to run alone"},
    {"HorovodInElasticMode", "HOROVOD_RANK=0, HOROVOD_SIZE=2, HOROVOD_ELASTIC=1",
     kInvalid + "elastic mode ... HOROVOD_ELASTIC=1 ... lockstep run"},
    {"ATrainJobsPodWithoutALauncher",
     "PET_NNODES=2, PET_NPROC_PER_NODE=auto, PET_NODE_RANK=0, PET_MASTER_ADDR=a, PET_MASTER_PORT=29400",
     kInvalid + "pod of a Kubeflow job (PET_NNODES=2 ... `lockstep run`"},
    {"APyTorchJobsPodOfSeveralProcesses", "RANK=1, WORLD_SIZE=16, PET_NPROC_PER_NODE=8",
     kInvalid + "PET_NPROC_PER_NODE=8 ... a pod's ... lockstep run"},
    {"APyTorchJobsPodOfAnyNumber", "RANK=1, WORLD_SIZE=16, PET_NPROC_PER_NODE=auto", kInvalid + "a pod's"},
    {"PmisIdAlone", "PMI_ID=1", kInvalid + "PMI_SIZE is not"},
    {"MlxsFileOfObjects", "MLX_RANK=0, MLX_HOSTFILE=/job/objects.json", kInvalid + "/job/objects.json" + kNoList},
    {"MlxsFileOfNumbers", "MLX_RANK=0, MLX_HOSTFILE=/job/numbers.json", kInvalid + "/job/numbers.json" + kNoList},
    {"MlxsFileOfEmptyLists", "MLX_RANK=0, MLX_HOSTFILE=/job/empty.json", kInvalid + "/job/empty.json" + kNoList},
    {"MlxsFileThatIsNotThere", "MLX_RANK=0, MLX_HOSTFILE=/nowhere", kInvalid + "MLX_HOSTFILE=/nowhere can't be read"},
    {"ArgumentOfTheRankAlone",
     "",
     kInvalid + "rank=1 was passed but world_size was not",
     {.rank = 1, .world_size = {}}},
    {"ArgumentOfTheSizeAlone",
     kTorchrun,
     kInvalid + "world_size=4 was passed but rank was not",
     {.rank = {}, .world_size = 4}},
    {"ArgumentsOutside", "", kInvalid + "rank=3 was passed with world_size=3", {3, 3}},
    {"ArgumentsOfNoRanks", "", kInvalid + "world_size=0", {0, 0}},
    {"ArgumentsAboveTheLimit", "", kInvalid + "world_size=2000000 ... it must be from 1 to 32768", {0, 2000000}},
};

class Identify : public ::testing::TestWithParam<Case> {};

TEST_P(Identify, Says) {
  const std::string text = outcome(GetParam());
  const std::string& wanted = GetParam().wanted;
  if (wanted.find(" ... ") == wanted.npos) {
    EXPECT_EQ(text, wanted);
    return;
  }
  std::size_t at = 0;
  for (std::size_t begin = 0; begin < wanted.size();) {
    const std::string part = wanted.substr(begin, wanted.find(" ... ", begin) - begin);
    const std::size_t found = text.find(part, at);
    ASSERT_NE(found, text.npos) << "no '" << part << "' in: " << text.substr(at);
    at = found + part.size();
    begin += part.size() + 5;
  }
}

const auto kName = [](const auto& test) { return test.param.name; };
INSTANTIATE_TEST_SUITE_P(Launchers, Identify, ::testing::ValuesIn(kLaunchers), kName);
INSTANTIATE_TEST_SUITE_P(Several, Identify, ::testing::ValuesIn(kSeveral), kName);
INSTANTIATE_TEST_SUITE_P(Refused, Identify, ::testing::ValuesIn(kRefused), kName);

TEST(PortOfJob, IsOneAndOutsideTheEphemeralRange) {
  std::set<int> ports;
  for (int job = 0; job < 1000; ++job) {
    const int port = port_of_job("srun/" + std::to_string(job) + ".0");
    EXPECT_GE(port, 20000);
    EXPECT_LT(port, 32000);
    ports.insert(port);
  }
  EXPECT_GT(ports.size(), 900u);
  EXPECT_EQ(port_of_job("srun/4711.0"), port_of_job("srun/4711.0"));
}

// The short forms of Slurm's lists.
TEST(SlurmLists, TheFirstHost) {
  const std::pair<const char*, const char*> lists[] = {
      {"n1", "n1"},           {"n1,n2", "n1"},          {"n[10,20-25],m3", "n10"},
      {"n[20-25,10]", "n20"}, {"n[008-011]", "n008"},   {"r[1-2]n[08-11]", "r1n08"},
      {"m3,n[1-2]", "m3"},    {"n[3-4]-ib,m", "n3-ib"},
  };
  for (const auto& [list, first] : lists) EXPECT_EQ(first_host(list), first) << list;
  for (const char* wrong : {"", ",n1", "n[", "n[]", "n[a-b]", "n]1", "n[1-2"}) {
    EXPECT_EQ(first_host(wrong), std::nullopt) << wrong;
  }
}

TEST(SlurmLists, TasksOnANode) {
  EXPECT_EQ(tasks_on_node("4", 0), 4);
  EXPECT_EQ(tasks_on_node("4(x2),3", 0), 4);
  EXPECT_EQ(tasks_on_node("4(x2),3", 1), 4);
  EXPECT_EQ(tasks_on_node("4(x2),3", 2), 3);
  EXPECT_EQ(tasks_on_node("4(x2),3", 3), std::nullopt);
  EXPECT_EQ(tasks_on_node("1,2(x1000000000),3", 1000000000), 2);
  EXPECT_EQ(tasks_on_node("4", -1), std::nullopt);
  for (const char* wrong : {"", "x", "4(", "4(x", "4(x)", "4(x2", "4(x-1)", "0", "-1", "4(x0)"}) {
    EXPECT_EQ(tasks_on_node(wrong, 0), std::nullopt) << wrong;
  }
}

}  // namespace
}  // namespace lockstep::rendezvous::identity_test
