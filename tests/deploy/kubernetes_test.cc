// SPDX-License-Identifier: Apache-2.0
// docs/deploy/kubernetes: what each pod's process would take itself for, with the variables that the operator adds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/flags/command_line.h"
#include "lockstep/base/error.h"
#include "runtime/rendezvous/identity/identity.h"
#include "runtime/rendezvous/meeting/meet.h"
#include "tests/deploy/deploy_files.h"
#include "tests/support/error_of.h"

namespace lockstep::testing::kubernetes_test {
namespace {

using nlohmann::json;
using rendezvous::Identity;
using RendezvousMethod = rendezvous::MeetingPlan::RendezvousMethod;
using ::testing::HasSubstr;

const std::string kDigits(64, '7');

int to_int(const json& value) { return std::stoi(value.get<std::string>()); }

const json& only(const json& list) {
  if (list.size() != 1) throw Error("wanted one: " + list.dump());
  return list.front();
}

const json& pod_spec(const json& replica) { return replica.at("template").at("spec"); }
const json& container_of(const json& replica) { return only(pod_spec(replica).at("containers")); }

Variables variables_of(const json& container) {
  Variables variables;
  for (const json& variable : container.value("env", json::array())) {
    variables[variable.at("name")] = variable.at("value");
  }
  return variables;
}

// Every mount of the pod's containers is of one of its volumes.
void expect_volumes(const json& pod) {
  for (const char* kind : {"initContainers", "containers"}) {
    for (const json& container : pod.value(kind, json::array())) {
      for (const json& mount : container.value("volumeMounts", json::array())) {
        bool found = false;
        for (const json& volume : pod.at("volumes")) found = found || volume.at("name") == mount.at("name");
        EXPECT_TRUE(found) << mount;
      }
    }
  }
}

// `path` of the container, in `folder`, which has a folder for each volume.
std::string mounted(const std::string& path, const json& container, const std::filesystem::path& folder) {
  for (const json& mount : container.value("volumeMounts", json::array())) {
    const std::string at = mount.at("mountPath");
    if (path.starts_with(at + "/")) return folder / mount.at("name").get<std::string>() / path.substr(at.size() + 1);
  }
  return path;
}

// As pkg/controller.v1/pytorch/{envvar,master}.go of the operator's 1.9.0 set them.
Variables operators_variables(const json& job, const std::string& type, int index) {
  const json& replicas = job.at("spec").at("pytorchReplicaSpecs");
  int total = 0;
  for (const auto& [name, replica] : replicas.items()) total += to_int(replica.at("replicas"));
  const std::string per_pod = job.at("spec").value("nprocPerNode", "auto");
  const int rank = type == "Master" ? 0 : index + 1;
  std::string port = "23456";
  for (const json& it : container_of(replicas.at("Master")).value("ports", json::array())) {
    if (it.at("name") == "pytorchjob-port") port = it.at("containerPort");
  }
  return {{"PYTHONUNBUFFERED", "1"},
          {"MASTER_ADDR", job.at("metadata").at("name").get<std::string>() + "-master-0"},
          {"MASTER_PORT", port},
          {"WORLD_SIZE", std::to_string(total * (per_pod == "auto" ? 1 : std::stoi(per_pod)))},
          {"RANK", std::to_string(rank)},
          {"PET_NODE_RANK", std::to_string(rank)},
          {"PET_NPROC_PER_NODE", per_pod},
          {"PET_NNODES", std::to_string(total)}};
}

void expect_in_the_image(const std::string& program) {
  const auto name = std::filesystem::path(program).filename().native();
  EXPECT_THAT(read_source("Dockerfile"), HasSubstr("--with " + name + " "));
}

TEST(DeployKubernetes, EachPodOfThePyTorchJobIsARankWithTheSecret) {
  const json job = read_manifest("kubernetes/pytorchjob.yaml");
  EXPECT_EQ(job.at("kind"), "PyTorchJob");
  std::vector<int> ranks;
  for (const auto& [type, replica] : job.at("spec").at("pytorchReplicaSpecs").items()) {
    const json& pod = pod_spec(replica);
    const json& container = container_of(replica);
    EXPECT_EQ(container.at("name"), "pytorch") << "the operator looks for it";
    expect_volumes(pod);
    expect_in_the_image(container.at("command").front());
    for (int index = 0; index < to_int(replica.at("replicas")); ++index) {
      // Here the folder is not mounted read-only, where any mode will do (StoreSecret in unit_store), so the file has
      // one of its own.
      const TemporaryFolder folder;
      folder.write("secret/store", kDigits, 0400);
      EXPECT_FALSE(pod.contains("initContainers"));
      EXPECT_TRUE(pod.at("securityContext").contains("fsGroup")) << "a Secret's file is root's, and its group's";
      EXPECT_EQ(only(container.at("volumeMounts")).at("readOnly"), "true");
      Variables variables = operators_variables(job, type, index);
      variables.merge(variables_of(container));
      std::string& file = variables["LOCKSTEP_STORE_SECRET_FILE"];
      file = mounted(file, container, folder);
      const Identity identity = rendezvous::identify(to_environment(variables));
      EXPECT_EQ(identity.world_size, 3);
      EXPECT_EQ(identity.source, "RANK and WORLD_SIZE");
      const auto plan = rendezvous::plan_meeting(identity, {}, to_environment(variables));
      EXPECT_EQ(plan.method, RendezvousMethod::address);
      EXPECT_EQ(plan.address.to_string(), "lockstep-master-0:23456");
      EXPECT_EQ(plan.secret, store::Secret::parse(kDigits));
      ranks.push_back(identity.rank);
    }
  }
  EXPECT_THAT(ranks, ::testing::UnorderedElementsAre(0, 1, 2));
}

TEST(DeployKubernetes, APyTorchJobWithoutNprocPerNodeIsRefused) {
  json job = read_manifest("kubernetes/pytorchjob.yaml");
  job.at("spec").erase("nprocPerNode");
  EXPECT_THAT(error_of([&] { rendezvous::identify(to_environment(operators_variables(job, "Worker", 0))); }),
              HasSubstr("PET_NPROC_PER_NODE=auto"));
}

TEST(DeployKubernetes, EachPodOfTheJobHasALauncherThatFindsTheFirstAndWhatCanBeDoneAgainIs) {
  const auto documents = parse_yaml(read_source("docs/deploy/kubernetes/job.yaml"));
  ASSERT_EQ(documents.size(), 2u);
  const json& job = documents[1];
  const json& pod = pod_spec(job.at("spec"));
  const json& container = only(pod.at("containers"));
  expect_volumes(pod);
  std::vector<std::string> words = container.at("args");
  // What the Job's controller annotates the second pod with.
  const json& index = container.at("env").at(0);
  EXPECT_EQ(index.at("valueFrom").at("fieldRef").at("fieldPath"),
            "metadata.annotations['batch.kubernetes.io/job-completion-index']");
  Environment environment;
  environment.set(index.at("name").get<std::string>(), "1");
  const auto command = launcher::parse_command_line(words, environment);
  const auto* const options = std::get_if<launcher::RunOptions>(&command);
  ASSERT_NE(options, nullptr);
  EXPECT_EQ(options->node_rank, 1);
  EXPECT_EQ(std::to_string(options->nodes), job.at("spec").at("completions").get<std::string>());
  EXPECT_EQ(job.at("spec").at("completions"), job.at("spec").at("parallelism"));
  const std::string service = documents[0].at("metadata").at("name");
  EXPECT_EQ(pod.at("subdomain"), service);
  EXPECT_EQ(options->endpoint.host, job.at("metadata").at("name").get<std::string>() + "-0." + service);
  EXPECT_EQ(documents[0].at("spec").at("selector"), job.at("spec").at("template").at("metadata").at("labels"));
  expect_in_the_image(options->command.front());
  EXPECT_GT(to_int(pod.at("terminationGracePeriodSeconds")), 25) << "--stop-timeout";
  // A rule counts only with this.
  EXPECT_EQ(pod.at("restartPolicy"), "Never");
  const auto codes_of = [&](const std::string& action) {
    std::vector<std::string> codes;
    for (const json& rule : job.at("spec").at("podFailurePolicy").at("rules")) {
      if (rule.at("action") != action || !rule.contains("onExitCodes")) continue;
      EXPECT_EQ(rule.at("onExitCodes").at("containerName"), container.at("name"));
      for (const std::string code : rule.at("onExitCodes").at("values")) codes.push_back(code);
    }
    return codes;
  };
  EXPECT_THAT(codes_of("Ignore"), ::testing::ElementsAre("75"));
  EXPECT_THAT(codes_of("FailJob"), ::testing::ElementsAre("2", "77", "126", "127"));
}

TEST(DeployKubernetes, TheRanksOfTheMpiJobMeetThroughPmix) {
  const json job = read_manifest("kubernetes/mpijob.yaml");
  EXPECT_EQ(job.at("kind"), "MPIJob");
  const json& spec = job.at("spec");
  const json& workers = spec.at("mpiReplicaSpecs").at("Worker");
  const json& launcher = container_of(spec.at("mpiReplicaSpecs").at("Launcher"));
  const int slots = to_int(spec.at("slotsPerWorker"));
  const int size = slots * to_int(workers.at("replicas"));
  const json& command = launcher.at("command");
  ASSERT_EQ(command.at(0), "mpirun");
  ASSERT_EQ(command.at(1), "-n");
  EXPECT_EQ(to_int(command.at(2)), size) << "as many ranks as slots";
  expect_in_the_image(command.at(3));

  for (int rank = 0; rank < size; ++rank) {
    Variables variables = {{"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
                           {"OMPI_COMM_WORLD_SIZE", std::to_string(size)},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", std::to_string(rank % slots)},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", std::to_string(slots)},
                           {"OMPI_MCA_orte_default_hostfile", "/etc/mpi/hostfile"},
                           {"PMIX_NAMESPACE", "77"},
                           {"PMIX_RANK", std::to_string(rank)}};
    variables.merge(variables_of(launcher));
    const Identity identity = rendezvous::identify(to_environment(variables));
    EXPECT_EQ(identity.rank, rank);
    EXPECT_EQ(identity.world_size, size);
    EXPECT_EQ(identity.local_rank, rank % slots);
    EXPECT_EQ(identity.local_world_size, slots);
    EXPECT_EQ(identity.source, "Open MPI");
    const auto plan = rendezvous::plan_meeting(identity, {}, to_environment(variables));
    EXPECT_EQ(plan.method, RendezvousMethod::pmix) << "which brings the secret along";
  }
  for (const char* role : {"launcher", "worker"}) {
    EXPECT_EQ(rendezvous::identify(to_environment({{"K_MPI_JOB_ROLE", role}})).source, "alone");
  }
}

// The value of a line "NAME VALUE".
std::string setting(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const auto start = line.find_first_not_of(' ');
    if (start != std::string::npos && line.compare(start, name.size() + 1, name + " ") == 0) {
      return line.substr(start + name.size() + 1);
    }
  }
  return {};
}

TEST(DeployKubernetes, TheMpiJobsSshFindsTheKeysThatTheOperatorMounts) {
  const json job = read_manifest("kubernetes/mpijob.yaml");
  const std::string server = read_source("docs/deploy/kubernetes/ssh/sshd_config");
  const std::string client = read_source("docs/deploy/kubernetes/ssh/ssh_config");
  const std::string keys = job.at("spec").at("sshAuthMountPath");
  EXPECT_EQ(setting(server, "HostKey"), keys + "/id_rsa");
  EXPECT_EQ(setting(server, "AuthorizedKeysFile"), keys + "/authorized_keys");
  EXPECT_THAT(setting(client, "KnownHostsCommand"), HasSubstr(keys + "/id_rsa.pub"));
  EXPECT_FALSE(setting(server, "Port").empty());
  EXPECT_EQ(setting(server, "Port"), setting(client, "Port"));
  const json& command = container_of(job.at("spec").at("mpiReplicaSpecs").at("Worker")).at("command");
  EXPECT_THAT(read_source("Dockerfile"),
              HasSubstr("docs/deploy/kubernetes/ssh/sshd_config " + command.back().get<std::string>() + "\n"));
}

}  // namespace
}  // namespace lockstep::testing::kubernetes_test
