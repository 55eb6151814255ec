// SPDX-License-Identifier: Apache-2.0
// docs/deploy/slurm: each script, with an srun that writes down what it was asked, and what the tasks would be.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>

#include "launcher/flags/command_line.h"
#include "runtime/rendezvous/identity/identity.h"
#include "runtime/rendezvous/meeting/meet.h"
#include "tests/deploy/deploy_files.h"
#include "tests/support/error_of.h"

namespace lockstep::testing::slurm_test {
namespace {

using rendezvous::Identity;
using RendezvousMethod = rendezvous::MeetingPlan::RendezvousMethod;

struct Asked {
  int nodes = 0;
  int per_node = 0;
  std::string srun;     // its words, each on a line
  Variables variables;  // that its tasks inherit
};

// The value of "#SBATCH --NAME=VALUE".
int directive(const std::string& script, const std::string& name) {
  const std::string text = "\n#SBATCH --" + name + "=";
  const auto at = script.find(text);
  if (at == std::string::npos) throw Error("no #SBATCH --" + name);
  return std::stoi(script.substr(at + text.size()));
}

Asked ask(const std::string& name, const Variables& given = {}) {
  const std::string path = "docs/deploy/slurm/" + name;
  const std::string script = read_source(path);
  const TemporaryFolder folder;
  folder.write("srun", "#!/bin/sh\nprintf '%s\\n' \"$@\"\nenv | grep ^LOCKSTEP_ >&2\ntrue\n", 0700);
  // It may not be installed here.
  folder.write("openssl", "#!/bin/sh\n[ \"$*\" = 'rand -hex 32' ] && od -An -v -tx1 -N32 /dev/urandom | tr -d ' \\n'\n",
               0700);
  Variables environment = given;
  environment["PATH"] = folder.native() + ":/usr/bin:/bin";
  environment["SLURM_CPUS_PER_TASK"] = std::to_string(directive(script, "cpus-per-task"));
  const Result result = run({"bash", source_folder() / path, "./train", "--epochs", "3"}, environment);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  Asked asked{.nodes = directive(script, "nodes"),
              .per_node = directive(script, "ntasks-per-node"),
              .srun = result.out,
              .variables = {}};
  std::istringstream lines(result.err);
  for (std::string line; std::getline(lines, line);) {
    const auto equals = line.find('=');
    asked.variables[line.substr(0, equals)] = line.substr(equals + 1);
  }
  asked.variables.erase("LOCKSTEP_TEST_JOB");
  return asked;
}

// The tasks, with what srun sets for them.
void expect_ranks(const Asked& asked, const Variables& more, RendezvousMethod method) {
  const int size = asked.nodes * asked.per_node;
  for (int rank = 0; rank < size; ++rank) {
    Variables variables = {
        {"SLURM_JOB_ID", "7"},
        {"SLURM_STEP_ID", "0"},
        {"SLURM_PROCID", std::to_string(rank)},
        {"SLURM_LOCALID", std::to_string(rank % asked.per_node)},
        {"SLURM_NODEID", std::to_string(rank / asked.per_node)},
        {"SLURM_STEP_NUM_TASKS", std::to_string(size)},
        {"SLURM_STEP_TASKS_PER_NODE", std::to_string(asked.per_node) + "(x" + std::to_string(asked.nodes) + ")"},
        {"SLURM_STEP_NODELIST", "n[1-2]"}};
    variables.insert(more.begin(), more.end());
    if (more.contains("PMIX_NAMESPACE")) variables["PMIX_RANK"] = std::to_string(rank);
    variables.insert(asked.variables.begin(), asked.variables.end());
    const Identity identity = rendezvous::identify(to_environment(variables));
    EXPECT_EQ(identity.rank, rank);
    EXPECT_EQ(identity.world_size, size);
    EXPECT_EQ(identity.local_rank, rank % asked.per_node);
    EXPECT_EQ(identity.node_rank, rank / asked.per_node);
    EXPECT_EQ(identity.source, "srun");
    const auto plan = rendezvous::plan_meeting(identity, {}, to_environment(variables));
    EXPECT_EQ(plan.method, method);
    EXPECT_EQ(plan.secret.has_value(), method == RendezvousMethod::address) << "over PMIx rank 0 draws it";
    EXPECT_EQ(plan.address.host, method == RendezvousMethod::address ? "n1" : "");
  }
}

TEST(DeploySlurm, TasksMeetAtTheFirstHostWithASecret) {
  const Asked asked = ask("train.sbatch");
  expect_text(asked.srun, {"\n./train\n--epochs\n3\n"});
  EXPECT_EQ(asked.variables.at("LOCKSTEP_STORE_SECRET").size(), 64U);
  expect_ranks(asked, {}, RendezvousMethod::address);
}

TEST(DeploySlurm, TasksMeetThroughPmix) {
  const Asked asked = ask("train-pmix.sbatch");
  expect_text(asked.srun, {"--mpi=pmix\n", "\n./train\n--epochs\n3\n"});
  EXPECT_FALSE(asked.variables.contains("LOCKSTEP_STORE_SECRET"));
  expect_ranks(asked, {{"PMIX_NAMESPACE", "slurm.pmix.7.0"}}, RendezvousMethod::pmix);
}

TEST(DeploySlurm, TasksOfContainers) {
  const Asked asked = ask("train-container.sbatch", {{"IMAGE", "a b.sif"}});
  expect_text(asked.srun, {"\napptainer\nexec\na b.sif\n./train\n--epochs\n3\n"});
  expect_ranks(asked, {}, RendezvousMethod::address);
}

// restart.sbatch with an srun that does what `step` says.
class RestartScript : public ::testing::Test {
 protected:
  RestartScript() {
    folder_.write("openssl", "#!/bin/sh\necho " + std::string(64, 'a') + "\n", 0700);
    folder_.write("scontrol",
                  "#!/bin/sh\ncase $1 in show) echo n1; echo n2; echo n3 ;; *) echo \"scontrol $*\" ;; esac\n", 0700);
  }
  Process start(const std::string& step) {
    folder_.write("srun", "#!/bin/sh\n" + step + "\n", 0700);
    return Process(
        {.command = {"bash", source_folder() / "docs/deploy/slurm/restart.sbatch", "./train", "--epochs", "3"},
         .environment = {{"PATH", folder_.native() + ":/usr/bin:/bin"},
                         {"SLURM_CPUS_PER_TASK", "8"},
                         {"SLURM_JOB_NUM_NODES", "3"},
                         {"SLURM_JOB_NODELIST", "n[1-3]"},
                         {"SLURM_JOB_ID", "4007"}}});
  }

 private:
  TemporaryFolder folder_;
};

TEST_F(RestartScript, StartsALauncherOnEachNodeWithFlagsThatItTakes) {
  const Result result = start("printf '%s\\n' \"$@\"").wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::vector<std::string> words;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) words.push_back(line);
  const auto launcher = std::find(words.begin(), words.end(), "lockstep");
  ASSERT_NE(launcher, words.end()) << result.out;
  EXPECT_NE(std::find(words.begin(), launcher, "--no-kill"), launcher);
  const auto command = launcher::parse_command_line({launcher + 1, words.end()});
  const auto* const options = std::get_if<launcher::RunOptions>(&command);
  ASSERT_NE(options, nullptr) << result.out;
  EXPECT_EQ(options->least_nodes, 2);
  EXPECT_EQ(options->nodes, 3);
  EXPECT_EQ(options->nproc_per_node, "8");
  EXPECT_EQ(options->endpoint.to_string(), "n1:29407");
  EXPECT_EQ(options->max_restarts, 10);
  EXPECT_EQ(options->command, (std::vector<std::string>{"./train", "--epochs", "3"}));
}

TEST_F(RestartScript, PassesOnTheSignalBeforeTheTimeIsOverAndIsQueuedAgain) {
  Process script = start("trap 'kill $!; exit 75' USR1; sleep 1000 & echo up; wait");
  ASSERT_TRUE(script.await_output("up\n"));
  script.send(SIGUSR1);
  const Result result = script.wait();
  EXPECT_EQ(result.exit_code, 75) << result.err;
  expect_text(result.out, {"scontrol requeue 4007\n"});
}

TEST_F(RestartScript, IsNotQueuedAgainAfterAFailureThatItsLaunchersCouldNotMend) {
  const Result result = start("exit 77").wait();
  EXPECT_EQ(result.exit_code, 77);
  EXPECT_EQ(result.out, "");
}

}  // namespace
}  // namespace lockstep::testing::slurm_test
