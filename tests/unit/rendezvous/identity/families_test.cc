// SPDX-License-Identifier: Apache-2.0
// One case for each launcher: its environment as it is (people's variables left out), and what comes of it.
#include "runtime/rendezvous/identity/families.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "lockstep/base/error.h"
#include "runtime/rendezvous/identity/identity.h"
#include "tests/support/error_of.h"

namespace lockstep::rendezvous::families_test {
namespace {

using lockstep::testing::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

// What a rank should know. -1: not known.
struct Wanted {
  std::string source;
  int rank;
  int world_size;
  int local_rank = -1;
  int local_world_size = -1;
  int node_rank = -1;
  std::string run_id = {};
  std::string master = {};  // "host:port", with "*" for a port made of the job's name
  std::string job = {};     // "family job", or "family of ANCESTOR"
  bool pmix = false;
  std::string ignored = {};
};

struct Case {
  std::string name;
  std::string environment;  // lines NAME=VALUE
  Wanted wanted;
};

Environment parse(const std::string& text) {
  Environment environment;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const auto begin = line.find_first_not_of(' ');
    if (begin == std::string::npos) continue;
    const auto equals = line.find('=');
    environment.set(line.substr(begin, equals - begin), line.substr(equals + 1));
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

const Case kCases[] = {
    {"LockstepRun",
     R"(RANK=3
        WORLD_SIZE=4
        LOCAL_RANK=1
        LOCAL_WORLD_SIZE=2
        GROUP_RANK=1
        MASTER_ADDR=127.0.0.1
        MASTER_PORT=40123
        LOCKSTEP_STORE=10.0.0.1:41233
        LOCKSTEP_STORE_SECRET=00
        LOCKSTEP_RUN_ID=f00d
        LOCKSTEP_RESTART_COUNT=0
        LOCKSTEP_LAUNCHER_PID=77)",
     {"lockstep run", 3, 4, 1, 2, 1, "f00d", "127.0.0.1:40123"}},
    {"Torchrun",
     R"(RANK=5
        LOCAL_RANK=1
        WORLD_SIZE=8
        LOCAL_WORLD_SIZE=4
        GROUP_RANK=1
        GROUP_WORLD_SIZE=2
        ROLE_RANK=5
        ROLE_WORLD_SIZE=8
        ROLE_NAME=default
        MASTER_ADDR=node0
        MASTER_PORT=29500
        TORCHELASTIC_RESTART_COUNT=0
        TORCHELASTIC_MAX_RESTARTS=3
        TORCHELASTIC_RUN_ID=none
        TORCHELASTIC_USE_AGENT_STORE=True
        TORCHELASTIC_ERROR_FILE=/tmp/torchelastic_x/error.json
        NCCL_ASYNC_ERROR_HANDLING=1
        OMP_NUM_THREADS=1)",
     {"torchrun", 5, 8, 1, 4, 1, "none", "node0:29500"}},
    {"DeepSpeed",
     R"(RANK=9
        WORLD_SIZE=16
        LOCAL_RANK=1
        LOCAL_SIZE=8
        CROSS_RANK=1
        CROSS_SIZE=2
        MASTER_ADDR=worker-0
        MASTER_PORT=29500)",
     {"DeepSpeed's launcher", 9, 16, 1, 8, 1, "", "worker-0:29500"}},
    {"Torchft",
     R"(RANK=1
        WORLD_SIZE=2
        LOCAL_RANK=1
        LOCAL_WORLD_SIZE=2
        GROUP_RANK=0
        MASTER_ADDR=localhost
        MASTER_PORT=29601
        TORCHELASTIC_RUN_ID=none
        TORCHFT_LIGHTHOUSE=http://localhost:29510
        TORCHFT_MANAGER_PORT=29512
        REPLICA_GROUP_ID=1
        NUM_REPLICA_GROUPS=2)",
     {"torchrun, torchft's replica group 1", 1, 2, 1, 2, 0, "none/replica 1", "localhost:29601"}},
    {"ByHand",
     R"(RANK=1
        WORLD_SIZE=2
        MASTER_ADDR=127.0.0.1
        MASTER_PORT=23456)",
     {"RANK and WORLD_SIZE", 1, 2, -1, -1, -1, "", "127.0.0.1:23456"}},
    {"OpenMpi",
     R"(OMPI_COMM_WORLD_RANK=2
        OMPI_COMM_WORLD_SIZE=4
        OMPI_COMM_WORLD_LOCAL_RANK=0
        OMPI_COMM_WORLD_LOCAL_SIZE=2
        OMPI_COMM_WORLD_NODE_RANK=0
        OMPI_UNIVERSE_SIZE=128
        OMPI_MCA_orte_hnp_uri=86409216.0;tcp://10.0.0.1:39137
        OMPI_MCA_ess_base_jobid=86409217
        PMIX_NAMESPACE=86409217
        PMIX_RANK=2
        PMIX_SERVER_URI3=86409216.0;tcp4://127.0.0.1:46529)",
     {"Open MPI", 2, 4, 0, 2, -1, "86409217", "", "mpirun 86409217", true}},
    {"OpenMpi5",
     R"(OMPI_COMM_WORLD_RANK=2
        OMPI_COMM_WORLD_SIZE=4
        OMPI_COMM_WORLD_LOCAL_RANK=0
        OMPI_COMM_WORLD_LOCAL_SIZE=2
        OMPI_COMM_WORLD_NODE_RANK=0
        OMPI_WORLD_SIZE=4
        OMPI_WORLD_LOCAL_SIZE=2
        OMPI_UNIVERSE_SIZE=4
        OMPI_MCA_num_procs=4
        OMPI_VERSION=5.0.11
        PMIX_NAMESPACE=prterun-host1-36@1
        PMIX_RANK=2
        PMIX_HOSTNAME=host2
        PMIX_SERVER_URI41=prterun-host1-36@0.1;tcp4://127.0.0.1:47671
        PRTE_LAUNCHED=1)",
     {"Open MPI", 2, 4, 0, 2, -1, "prterun-host1-36@1", "", "mpirun prterun-host1-36@1", true}},
    {"AzureMl",
     R"(OMPI_COMM_WORLD_RANK=2
        OMPI_COMM_WORLD_SIZE=4
        OMPI_COMM_WORLD_LOCAL_RANK=0
        OMPI_COMM_WORLD_LOCAL_SIZE=2
        OMPI_MCA_ess_base_jobid=86409217
        AZ_BATCH_MASTER_NODE=10.0.0.4:6000
        AZ_BATCHAI_MPI_MASTER_NODE=10.0.0.4
        AZUREML_RUN_ID=exp_1)",
     {"Open MPI", 2, 4, 0, 2, -1, "86409217", "10.0.0.4:6000", "mpirun 86409217"}},
    {"KubeflowMpiJobsRank",
     R"(K_MPI_JOB_ROLE=launcher
        OMPI_MCA_orte_default_hostfile=/etc/mpi/hostfile
        OMPI_MCA_orte_keep_fqdn_hostnames=true
        OMPI_MCA_plm_rsh_args=-o ConnectionAttempts=10
        OMPI_COMM_WORLD_RANK=0
        OMPI_COMM_WORLD_SIZE=2
        OMPI_COMM_WORLD_LOCAL_RANK=0
        OMPI_COMM_WORLD_LOCAL_SIZE=1
        PMIX_NAMESPACE=5
        PMIX_RANK=0)",
     {"Open MPI", 0, 2, 0, 1, -1, "5", "", "mpirun 5", true, "Kubeflow MPIJob (K_MPI_JOB_ROLE=launcher)"}},
    {"KubeflowMpiJobsLauncherPod",
     R"(K_MPI_JOB_ROLE=launcher
        OMPI_MCA_orte_default_hostfile=/etc/mpi/hostfile
        HYDRA_HOST_FILE=/etc/mpi/hostfile
        I_MPI_HYDRA_HOST_FILE=/etc/mpi/hostfile
        I_MPI_PERHOST=1)",
     {"alone", 0, 1, -1, -1, -1, "", "", "", false, "Kubeflow MPIJob (K_MPI_JOB_ROLE=launcher)"}},
    {"Mvapich2",
     R"(MV2_COMM_WORLD_RANK=3
        MV2_COMM_WORLD_SIZE=4
        MV2_COMM_WORLD_LOCAL_RANK=1
        MV2_COMM_WORLD_LOCAL_SIZE=2
        PMI_ID=3
        PMI_PORT=node0:33211
        MPISPAWN_ID=1)",
     {"MVAPICH2", 3, 4, 1, 2, -1, "", "", "mvapich of mpispawn hydra_pmi_proxy", false, "PMI (PMI_ID=3)"}},
    {"Mpich",
     R"(PMI_RANK=1
        PMI_SIZE=2
        PMI_FD=8
        MPI_LOCALRANKID=1
        MPI_LOCALNRANKS=2
        HYDI_CONTROL_FD=7
        MPIR_CVAR_CH3_INTERFACE_HOSTNAME=node0)",
     {"Hydra (MPICH, Intel MPI)", 1, 2, 1, 2, -1, "", "", "hydra of hydra_pmi_proxy"}},
    {"Mpich5",
     R"(PMI_RANK=3
        PMI_SIZE=4
        PMI_FD=11
        PMI_HOSTNAME=host2
        MPI_LOCALRANKID=1
        MPI_LOCALNRANKS=2
        HYDI_CONTROL_FD=7)",
     {"Hydra (MPICH, Intel MPI)", 3, 4, 1, 2, -1, "", "", "hydra of hydra_pmi_proxy"}},
    {"IntelMpi2021",
     R"(HYDRA_BSTRAP_LAUNCHER=ssh
        HYDRA_BSTRAP_LOCALHOST=host2
        HYDRA_BSTRAP_NODE_ID=1
        HYDRA_BSTRAP_PROXY_ID=1
        HYDRA_BSTRAP_PGID=0
        I_MPI_HYDRA_UUID=471b0000-c78d-6421-6761-06000dc67648
        I_MPI_INFO_LCPU=2
        I_MPI_MPIRUN=mpirun
        I_MPI_PIN_INFO=1
        PMI_FD=11
        PMI_RANK=3
        PMI_SIZE=4
        MPI_LOCALRANKID=1
        MPI_LOCALNRANKS=2)",
     {"Hydra (MPICH, Intel MPI)", 3, 4, 1, 2, -1, "", "", "hydra of hydra_pmi_proxy"}},
    {"IntelMpi",
     R"(I_MPI_ROOT=/opt/intel/oneapi/mpi/2021.12
        I_MPI_PERHOST=2
        I_MPI_HYDRA_BOOTSTRAP=ssh
        PMI_RANK=3
        PMI_SIZE=4
        PMI_FD=12
        MPI_LOCALRANKID=1
        MPI_LOCALNRANKS=2)",
     {"Hydra (MPICH, Intel MPI)", 3, 4, 1, 2, -1, "", "", "hydra of hydra_pmi_proxy"}},
    {"CrayPals",
     R"(PALS_RANKID=13
        PALS_NODEID=1
        PALS_LOCAL_RANKID=1
        PALS_LOCAL_SIZE=12
        PALS_APID=8a1b-42
        PALS_DEPTH=8
        PALS_SPOOL_DIR=/var/run/palsd/8a1b
        PMI_RANK=13
        PMI_SIZE=24
        PMI_LOCAL_RANK=1
        PMI_LOCAL_SIZE=12
        MPI_LOCALRANKID=1
        MPI_LOCALNRANKS=12
        PMIX_RANK=13)",
     {"PALS", 13, 24, 1, 12, 1, "8a1b-42", "", "pals 8a1b-42"}},
    {"Jsrun",
     R"(JSM_NAMESPACE_RANK=7
        JSM_NAMESPACE_SIZE=12
        JSM_NAMESPACE_LOCAL_RANK=1
        JSM_NAMESPACE_LOCAL_SIZE=6
        LSB_JOBID=1100
        LSB_HOSTS=batch1 c02n03 c02n03 c02n04 c02n04)",
     {"jsrun", 7, 12, 1, 6, -1, "1100/", "c02n03:*", "jsrun 1100/"}},
    {"JsrunWithARankFile",
     R"(JSM_NAMESPACE_RANK=0
        JSM_NAMESPACE_SIZE=4
        LSB_JOBID=1100
        LSB_DJOB_RANKFILE=/job/rankfile
        LSB_HOSTS=elsewhere)",
     {"jsrun", 0, 4, -1, -1, -1, "1100/", "c02n03:*", "jsrun 1100/"}},
    {"Flux",
     R"(FLUX_URI=local:///run/flux/local
        FLUX_JOB_ID=f2a9yUvF
        FLUX_JOB_NNODES=1
        FLUX_JOB_SIZE=4
        FLUX_TASK_LOCAL_ID=2
        FLUX_TASK_RANK=2
        PMI_FD=12
        PMI_RANK=2
        PMI_SIZE=4)",
     {"Flux", 2, 4, 2, 4, -1, "f2a9yUvF", "", "flux f2a9yUvF", false, "PMI (PMI_RANK=2 PMI_SIZE=4)"}},
    {"Srun",
     R"(SLURM_JOB_ID=4711
        SLURM_JOBID=4711
        SLURM_JOB_NODELIST=n[10,20-25],m3
        SLURM_NODELIST=n[10,20-25],m3
        SLURM_JOB_NUM_NODES=8
        SLURM_LAUNCH_NODE_IPADDR=192.168.0.1
        SLURM_LOCALID=1
        SLURM_NODEID=2
        SLURM_NTASKS=99
        SLURM_NPROCS=99
        SLURM_NTASKS_PER_NODE=50
        SLURM_PROCID=9
        SLURM_STEP_ID=1
        SLURM_STEP_NODELIST=n[20-22]
        SLURM_STEP_NUM_NODES=3
        SLURM_STEP_NUM_TASKS=11
        SLURM_STEP_TASKS_PER_NODE=4(x2),3
        SLURM_TASKS_PER_NODE=4(x8)
        SLURM_CPUS_PER_TASK=8
        SLURMD_NODENAME=n22)",
     {"srun", 9, 11, 1, 3, 2, "4711.1", "n20:*", "srun 4711.1"}},
    {"SrunWithPmix",
     R"(SLURM_JOB_ID=4711
        SLURM_LOCALID=1
        SLURM_NODEID=0
        SLURM_PROCID=1
        SLURM_STEP_ID=0
        SLURM_STEP_NODELIST=n20
        SLURM_STEP_NUM_TASKS=2
        SLURM_STEP_TASKS_PER_NODE=2
        SLURM_MPI_TYPE=pmix
        SLURM_PMIX_MAPPING_SERV=(vector,(0,1,2))
        PMIX_NAMESPACE=slurm.pmix.4711.0
        PMIX_RANK=1)",
     {"srun", 1, 2, 1, 2, 0, "4711.0", "n20:*", "srun 4711.0", true}},
    {"SrunOnACray",
     R"(SLURM_JOB_ID=4711
        SLURM_LOCALID=0
        SLURM_NODEID=1
        SLURM_PROCID=1
        SLURM_STEP_ID=0
        SLURM_STEP_NODELIST=nid[000010-000011]
        SLURM_STEP_NUM_TASKS=2
        SLURM_STEP_TASKS_PER_NODE=1(x2)
        PALS_APID=4711.0
        PALS_RANKID=1
        PALS_NODEID=1
        PMI_JOBID=4711)",
     {"srun", 1, 2, 0, 1, 1, "4711.0", "nid000010:*", "srun 4711.0", false,
      "PALS (PALS_RANKID=1 PALS_NODEID=1 PALS_APID=4711.0)"}},
    {"Horovod",
     R"(HOROVOD_HOSTNAME=n1
        HOROVOD_RANK=2
        HOROVOD_SIZE=4
        HOROVOD_LOCAL_RANK=0
        HOROVOD_LOCAL_SIZE=2
        HOROVOD_CROSS_RANK=1
        HOROVOD_CROSS_SIZE=2
        HOROVOD_GLOO_RENDEZVOUS_ADDR=10.0.0.1
        HOROVOD_GLOO_RENDEZVOUS_PORT=33001
        HOROVOD_GLOO_IFACE=eth0
        HOROVOD_CONTROLLER=gloo
        HOROVOD_CPU_OPERATIONS=gloo)",
     {"horovodrun", 2, 4, 0, 2, 1, "10.0.0.1:33001", "", "horovodrun 10.0.0.1:33001"}},
    {"MlxNccl",
     R"(MLX_RANK=1
        MLX_WORLD_SIZE=2
        NCCL_HOST_IP=10.0.0.1
        NCCL_PORT=12345
        CUDA_VISIBLE_DEVICES=1)",
     {"MLX (nccl)", 1, 2, -1, -1, -1, "", "10.0.0.1:12345"}},
    {"MlxRing",
     R"(MLX_RANK=2
        MLX_HOSTFILE=/job/ring.json
        MLX_RING_VERBOSE=1)",
     {"MLX (ring)", 2, 3, -1, -1, -1, "", "10.0.0.1:5000"}},
    {"MlxRingWithAFlatList",
     R"(MLX_RANK=1
        MLX_HOSTFILE=/job/flat.json)",
     {"MLX (ring)", 1, 2, -1, -1, -1, "", "10.0.0.1:5000"}},
    {"PyTorchJobWithOneProcessPerPod",
     R"(PYTHONUNBUFFERED=1
        MASTER_ADDR=job-master-0
        MASTER_PORT=23456
        WORLD_SIZE=2
        RANK=1
        PET_MASTER_ADDR=job-master-0
        PET_MASTER_PORT=23456
        PET_NPROC_PER_NODE=1
        PET_NNODES=2
        PET_NODE_RANK=1)",
     {"RANK and WORLD_SIZE", 1, 2, -1, -1, -1, "", "job-master-0:23456"}},
    {"PmixWithoutASize",
     R"(PMIX_RANK=3
        PMIX_NAMESPACE=prterun-n1-99@1)",
     {"PMIx", 3, 1, -1, -1, -1, "prterun-n1-99@1", "", "pmix prterun-n1-99@1", true}},
};

class Launcher : public ::testing::TestWithParam<Case> {};

TEST_P(Launcher, IsRead) {
  const Wanted& wanted = GetParam().wanted;
  const Identity identity = identify(parse(GetParam().environment), {}, test_files);
  EXPECT_EQ(identity.source, wanted.source);
  EXPECT_EQ(identity.rank, wanted.rank);
  EXPECT_EQ(identity.world_size, wanted.world_size);
  EXPECT_EQ(identity.local_rank_known ? identity.local_rank : -1, wanted.local_rank);
  EXPECT_EQ(identity.local_world_size_known ? identity.local_world_size : -1, wanted.local_world_size);
  EXPECT_EQ(identity.node_rank.value_or(-1), wanted.node_rank);
  EXPECT_EQ(identity.run_id, wanted.run_id);
  const int port = identity.master_port;
  const bool derived = port >= kFirstJobPort && port <= kLastJobPort && wanted.master.ends_with(":*");
  EXPECT_EQ(identity.master_addr.empty() && port == 0
                ? ""
                : identity.master_addr + ":" + (derived ? "*" : std::to_string(port)),
            wanted.master);
  std::string job = identity.job_family + (identity.job_id.empty() ? "" : " " + identity.job_id);
  for (const std::string& ancestor : identity.job_ancestors) {
    job += (ancestor == identity.job_ancestors.front() ? " of " : " ") + ancestor;
  }
  EXPECT_EQ(job, wanted.job);
  EXPECT_EQ(identity.pmix, wanted.pmix);
  EXPECT_EQ(identity.ignored, wanted.ignored);
  EXPECT_EQ(identity.size_from_pmix, wanted.source == "PMIx");
}

INSTANTIATE_TEST_SUITE_P(Families, Launcher, ::testing::ValuesIn(kCases),
                         [](const auto& one) { return one.param.name; });

// --- What is recognised and can't be an identity.

std::string refusal(const std::string& environment) {
  return error_of([&] { identify(parse(environment), {}, test_files); });
}

TEST(Refused, HorovodInElasticMode) {
  EXPECT_THAT(refusal("HOROVOD_RANK=0\nHOROVOD_SIZE=2\nHOROVOD_ELASTIC=1"),
              AllOf(HasSubstr("elastic mode"), HasSubstr("HOROVOD_ELASTIC=1"), HasSubstr("lockstep run")));
}

TEST(Refused, ATrainJobsPodWithoutALauncher) {
  EXPECT_THAT(
      refusal("PET_NNODES=2\nPET_NPROC_PER_NODE=auto\nPET_NODE_RANK=0\nPET_MASTER_ADDR=a\nPET_MASTER_PORT=29400"),
      AllOf(HasSubstr("pod of a Kubeflow job"), HasSubstr("PET_NNODES=2"), HasSubstr("`lockstep run`")));
  EXPECT_THAT(refusal("PET_NPROC_PER_NODE=auto"), HasSubstr("PET_NPROC_PER_NODE=auto"));
  const Identity one = identify(parse("PET_NNODES=1\nPET_NPROC_PER_NODE=1\nPET_NODE_RANK=0"));
  EXPECT_EQ(one.source, "alone");
  EXPECT_THAT(one.ignored, HasSubstr("Kubeflow (PET_NNODES=1"));
}

TEST(Refused, FilesOfMlxThatHoldNoList) {
  for (const char* file : {"/job/objects.json", "/job/numbers.json", "/job/empty.json", "/job/rankfile"}) {
    EXPECT_THAT(refusal(std::string("MLX_RANK=0\nMLX_HOSTFILE=") + file),
                AllOf(HasSubstr(std::string(file) + " holds no list"), HasSubstr("lockstep run")));
  }
  EXPECT_THAT(refusal("MLX_RANK=0\nMLX_HOSTFILE=/nowhere"), HasSubstr("MLX_HOSTFILE=/nowhere can't be read"));
  EXPECT_THAT(refusal("MLX_RANK=5\nMLX_HOSTFILE=/job/ring.json"), HasSubstr("MLX_RANK=5"));
  EXPECT_THAT(refusal("MLX_RANK=0"), HasSubstr("neither MLX_WORLD_SIZE"));
}

TEST(Refused, HalvesOfEachFamilyNameWhatIsMissing) {
  const std::pair<const char*, const char*> halves[] = {
      {"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE is not"},
      {"MV2_COMM_WORLD_SIZE=2", "MV2_COMM_WORLD_RANK is not"},
      {"PALS_RANKID=1", "PMI_SIZE is not"},
      {"PMI_RANK=1\nMPI_LOCALRANKID=1", "PMI_SIZE is not"},
      {"MPI_LOCALRANKID=1", "PMI_ID and PMI_SIZE are not"},
      {"PMI_RANK=1", "PMI_SIZE is not"},
      {"JSM_NAMESPACE_RANK=1", "JSM_NAMESPACE_SIZE is not"},
      {"FLUX_TASK_RANK=1", "FLUX_JOB_SIZE is not"},
      {"SLURM_PROCID=1\nSLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS is not"},
      {"HOROVOD_RANK=1", "HOROVOD_SIZE is not"},
      {"PMIX_RANK=1", "PMIX_NAMESPACE is not"},
      {"PMIX_NAMESPACE=x", "PMIX_RANK is not"},
  };
  for (const auto& [environment, said] : halves) {
    EXPECT_THAT(refusal(environment), AllOf(HasSubstr(said), HasSubstr("to run alone"))) << environment;
  }
}

TEST(Refused, RanksOutsideTheirWorldInEachFamily) {
  for (const char* environment :
       {"MV2_COMM_WORLD_RANK=4\nMV2_COMM_WORLD_SIZE=4", "PALS_RANKID=4\nPMI_SIZE=4",
        "PMI_RANK=4\nPMI_SIZE=4\nMPI_LOCALRANKID=0", "JSM_NAMESPACE_RANK=4\nJSM_NAMESPACE_SIZE=4",
        "FLUX_TASK_RANK=4\nFLUX_JOB_SIZE=4", "SLURM_PROCID=4\nSLURM_STEP_NUM_TASKS=4\nSLURM_STEP_ID=0",
        "HOROVOD_RANK=4\nHOROVOD_SIZE=4", "MLX_RANK=4\nMLX_WORLD_SIZE=4"}) {
    EXPECT_THAT(refusal(environment), HasSubstr("ranks of this world are 0 to 3")) << environment;
  }
}

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

}  // namespace
}  // namespace lockstep::rendezvous::families_test
