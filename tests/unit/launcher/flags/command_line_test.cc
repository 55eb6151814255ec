// SPDX-License-Identifier: Apache-2.0
#include "launcher/flags/command_line.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <utility>

#include "launcher/base/exit_codes.h"
#include "launcher/flags/help_format.h"

namespace lockstep::launcher::command_line_test {
namespace {

using Arguments = std::vector<std::string>;

RunOptions parsed(const Arguments& arguments) {
  auto result = parse_command_line(arguments);
  if (const auto* answer = std::get_if<Answer>(&result)) {
    ADD_FAILURE() << "refused: " << answer->out << answer->err;
    return {};
  }
  return std::get<RunOptions>(std::move(result));
}

ServeOptions served(const Arguments& flags) {
  Arguments arguments = {"store", "serve"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  auto result = parse_command_line(arguments);
  if (const auto* answer = std::get_if<Answer>(&result)) {
    ADD_FAILURE() << "refused: " << answer->out << answer->err;
    return {};
  }
  return std::get<ServeOptions>(std::move(result));
}

Answer answered(const Arguments& arguments) {
  auto result = parse_command_line(arguments);
  if (!std::holds_alternative<Answer>(result)) {
    ADD_FAILURE() << "accepted";
    return {};
  }
  return std::get<Answer>(std::move(result));
}

// The complaint about a wrong command line: one line, exit code 2, nothing on stdout.
std::string refused(const Arguments& arguments) {
  const auto answer = answered(arguments);
  EXPECT_EQ(answer.exit_code, kExitUsage);
  EXPECT_EQ(answer.out, "");
  EXPECT_EQ(answer.err.find('\n'), answer.err.size() - 1) << answer.err;
  return answer.err;
}

// A folder may have the name of another command.
TEST(CommandLine, AReportIsOfFolders) {
  const auto report_of = [](const Arguments& arguments) {
    return std::get<ReportOptions>(parse_command_line(arguments));
  };
  EXPECT_EQ(report_of({"report", "logs"}).folders, Arguments{"logs"});
  const ReportOptions both = report_of({"report", "logs", "top", "-o", "run.html"});
  EXPECT_EQ(both.folders, (Arguments{"logs", "top"}));
  EXPECT_EQ(both.file, "run.html");
  EXPECT_EQ(report_of({"report", "a", "b"}).file, "");
  EXPECT_EQ(std::get<SnapshotsOptions>(parse_command_line({"snapshots", "logs"})).folder, "logs");
  const auto exported = std::get<SnapshotsOptions>(parse_command_line({"snapshots", "export", "a", "b"}));
  EXPECT_EQ(exported.folder, "a");
  EXPECT_EQ(exported.output, "b");
  EXPECT_EQ(std::get<SnapshotsOptions>(parse_command_line({"snapshots", "export"})).folder, "export");
  EXPECT_NE(refused({"report"}).find("0 folders were given"), std::string::npos);
  EXPECT_NE(refused({"report", "a", ""}).find("2 folders were given"), std::string::npos);
  EXPECT_NE(refused({"report", "1", "2", "3", "4", "5", "6", "7"}).find("7 folders were given"), std::string::npos);
}

TEST(CommandLine, DefaultsAreTheDocumentedOnes) {
  const auto options = parsed({"run", "./train"});
  EXPECT_EQ(options.nproc_per_node, "auto");
  EXPECT_FALSE(options.ranks);
  EXPECT_EQ(options.log_dir, "");
  EXPECT_EQ(options.grace, std::chrono::milliseconds(700));
  EXPECT_TRUE(options.rank_variables.empty());
  EXPECT_EQ(options.master_addr, "127.0.0.1");
  EXPECT_EQ(options.master_port, 0);
  EXPECT_FALSE(options.torch_store);
  EXPECT_EQ(options.command, Arguments{"./train"});
}

TEST(CommandLine, TakesEverySpellingOfAFlag) {
  EXPECT_EQ(parsed({"run", "--nproc-per-node", "4", "p"}).nproc_per_node, "4");
  EXPECT_EQ(parsed({"run", "--nproc-per-node=4", "p"}).nproc_per_node, "4");
  EXPECT_EQ(parsed({"run", "--nproc_per_node=gpu", "p"}).nproc_per_node, "gpu");
  EXPECT_EQ(parsed({"run", "-n", "4", "p"}).ranks, 4);
  EXPECT_EQ(parsed({"run", "-n4", "p"}).ranks, 4);
  EXPECT_EQ(parsed({"run", "--log_dir", "d", "p"}).log_dir, "d");
  EXPECT_EQ(parsed({"run", "--log-dir=d", "p"}).log_dir, "d");
}

TEST(CommandLine, TakesTorchrunsFlagsWhereTheirMeaningHolds) {
  const auto options = parsed({"run", "--standalone", "--nnodes=1", "--node_rank=0", "--max_restarts=0",
                               "--nproc_per_node=2", "--master_addr=localhost", "--master_port=29500", "p"});
  EXPECT_EQ(options.nproc_per_node, "2");
  EXPECT_EQ(options.master_addr, "localhost");
  EXPECT_EQ(options.master_port, 29500);
  EXPECT_EQ(parsed({"run", "--nnodes=1:1", "p"}).command, Arguments{"p"});
}

TEST(CommandLine, WhatFollowsTheProgramIsTheProgramS) {
  EXPECT_EQ(parsed({"run", "-n", "2", "p", "-n", "3", "--help", "--version", "--bogus", "--", "x"}).command,
            (Arguments{"p", "-n", "3", "--help", "--version", "--bogus", "--", "x"}));
  EXPECT_EQ(parsed({"run", "--", "p", "--help", "-n", "3", "--", "x"}).command,
            (Arguments{"p", "--help", "-n", "3", "--", "x"}));
  EXPECT_EQ(parsed({"run", "--", "--strange-name"}).command, Arguments{"--strange-name"});
  EXPECT_EQ(parsed({"run", "p", ""}).command, (Arguments{"p", ""}));
}

TEST(CommandLine, RefusesUnknownFlagsByName) {
  EXPECT_NE(refused({"run", "--bogus", "p"}).find("unknown flag --bogus"), std::string::npos);
  EXPECT_NE(refused({"run", "-n", "2", "-y"}).find("unknown flag -y"), std::string::npos);
  EXPECT_NE(refused({"--bogus"}).find("--bogus"), std::string::npos);
  EXPECT_NE(refused({"frobnicate", "x"}).find("'frobnicate' is not a command; there are run,"), std::string::npos);
}

TEST(CommandLine, NamesTheFlagOrCommandThatWasMeant) {
  const std::vector<std::pair<Arguments, std::string>> table = {
      {{"rnu", "p"}, "; did you mean run?\n"},
      {{"isnpect"}, "; did you mean inspect?\n"},
      {{"snap"}, "; did you mean snapshots?\n"},
      {{"run", "--log-dri=x", "p"}, "; did you mean --log-dir?\n"},
      {{"run", "--max_restart", "2", "p"}, "; did you mean --max-restarts?\n"},
      {{"run", "--np", "2", "p"}, "; did you mean --nproc-per-node?\n"},
      {{"run", "--quite-another", "p"}, ""},
      {{"run", "-y", "p"}, ""},
      {{"run", "--backend", "scm", "p"}, "; did you mean shm?\n"},
      {{"top", "--onec"}, "; did you mean --once?\n"},
      {{"top", "one", "two"}, ""},
      {{"store", "serve", "--max-client", "2"}, "; did you mean --max-clients?\n"},
  };
  for (const auto& [arguments, wanted] : table) {
    const std::string text = refused(arguments);
    EXPECT_TRUE(wanted.empty() ? text.find("did you mean") == text.npos : text.ends_with(wanted)) << text;
  }
}

TEST(CommandLine, ABackendOfTheEnvironmentIsCheckedAsTheFlagIs) {
  Environment environment;
  environment.set("LOCKSTEP_BACKEND", "gpu");
  const auto with = [&](const Arguments& arguments) { return parse_command_line(arguments, environment); };
  for (const auto& arguments : {Arguments{"run", "p"}, Arguments{"run", "-H", "a", "p"}}) {
    const auto answer = std::get<Answer>(with(arguments));
    EXPECT_EQ(answer.exit_code, kExitUsage);
    EXPECT_NE(answer.err.find("--backend gpu: give auto, shm,"), std::string::npos) << answer.err;
    EXPECT_NE(answer.err.find("; the variable LOCKSTEP_BACKEND says so\n"), std::string::npos) << answer.err;
  }
  EXPECT_EQ(std::get<RunOptions>(with({"run", "--backend", "tcp", "p"})).rank_variables.at("LOCKSTEP_BACKEND"), "tcp");
}

TEST(CommandLine, RefusesAMissingProgram) {
  for (const auto& arguments : {Arguments{"run"}, Arguments{"run", "--"}, Arguments{"run", "-n", "2"}}) {
    EXPECT_NE(refused(arguments).find("no program was given"), std::string::npos);
  }
  EXPECT_NE(refused({}).find("no command"), std::string::npos);
}

TEST(CommandLine, AnEmptyValueIsNoWishForTheDefault) {
  for (const std::string flag :
       {"--log-dir", "--tee", "--ranks", "--bind", "--grace", "--timeout", "--hang-timeout", "--liveness",
        "--master-addr", "--master-port", "--nnodes", "--nproc-per-node", "-n"}) {
    EXPECT_NE(refused({"run", flag, "", "p"}).find(flag + ": its value is empty"), std::string::npos) << flag;
  }
  for (const std::string flag : {"--host", "--port", "--secret-file", "--store-auth", "--max-keys"}) {
    EXPECT_NE(refused({"store", "serve", flag, ""}).find(flag + ": its value is empty"), std::string::npos) << flag;
  }
  EXPECT_NE(refused({"doctor", "--probe-timeout", ""}).find("--probe-timeout: its value is empty"), std::string::npos);
}

TEST(CommandLine, AFlagComesOnceWithOneValue) {
  for (const auto& arguments : {Arguments{"run", "-n"}, Arguments{"run", "-n", "2", "-n", "3", "p"}}) {
    EXPECT_NE(refused(arguments).find("lockstep run: -n: give this flag once, with one value"), std::string::npos);
  }
  EXPECT_NE(refused({"run", "-n", "./train"}).find("-n ./train: give a number"), std::string::npos);
  EXPECT_NE(refused({"run", "-np", "2", "./train"}).find("here it is -n"), std::string::npos);
}

TEST(CommandLine, RefusesCountsThatAreNone) {
  for (const std::string bad : {"0", "-1", "x", "4x", "1e3", "1025", "99999999999999999999", " 2"}) {
    EXPECT_NE(refused({"run", "--nproc-per-node", bad, "p"}).find("--nproc-per-node " + bad), std::string::npos);
    EXPECT_NE(refused({"run", "-n", bad, "p"}).find("1 to 1024"), std::string::npos);
  }
  refused({"run", "--nproc-per-node=", "p"});
  refused({"run", "-n", "auto", "p"});
}

RunOptions parsed_with(const Arguments& arguments, const std::vector<std::pair<std::string, std::string>>& variables) {
  Environment environment;
  for (const auto& [name, value] : variables) environment.set(name, value);
  auto result = parse_command_line(arguments, environment);
  if (const auto* answer = std::get_if<Answer>(&result)) {
    ADD_FAILURE() << "refused: " << answer->err;
    return {};
  }
  return std::get<RunOptions>(std::move(result));
}

TEST(CommandLine, ReadsWhatSeveralHostsNeed) {
  const auto options = parsed({"run", "--nnodes", "3", "--node-rank", "1", "--rdzv-endpoint", "host0:29500",
                               "--rdzv_id=train", "--rdzv-timeout", "7", "--rdzv_backend=c10d", "p"});
  EXPECT_EQ(options.nodes, 3);
  EXPECT_EQ(options.node_rank, 1);
  EXPECT_EQ(options.endpoint, (net::HostPort{"host0", 29500}));
  EXPECT_EQ(options.run_id, "train");
  EXPECT_EQ(options.rdzv_timeout, std::chrono::seconds(7));
  EXPECT_EQ(options.master_addr, "host0");
  const auto short_form = parsed({"run", "--nnodes=2:2", "--rdzv-endpoint=host0", "p"});
  EXPECT_EQ(short_form.node_rank, std::nullopt);
  EXPECT_EQ(short_form.endpoint, (net::HostPort{"host0", kRendezvousPort}));
  EXPECT_EQ(short_form.rdzv_timeout, std::chrono::seconds(300));
  // As torchrun's static rendezvous has it; the port is the job's store's, so the ranks get another.
  const auto static_form = parsed({"run", "--nnodes=2", "--master-addr=host0", "--master-port=4000", "p"});
  EXPECT_EQ(static_form.endpoint, (net::HostPort{"host0", 4000}));
  EXPECT_EQ(static_form.master_port, 0);
  EXPECT_EQ(parsed({"run", "--rdzv-conf=timeout=900,join_timeout=60", "p"}).rdzv_timeout, std::chrono::seconds(60));
}

TEST(CommandLine, TorchrunsVariablesCountWhereTheFlagIsNotGiven) {
  const auto options = parsed_with({"run", "--node-rank=2", "p"}, {{"PET_NNODES", "3"},
                                                                   {"PET_NODE_RANK", "1"},
                                                                   {"PET_NPROC_PER_NODE", "4"},
                                                                   {"PET_RDZV_ENDPOINT", "host0:4000"},
                                                                   {"PET_RDZV_ID", "j"},
                                                                   {"PET_RDZV_CONF", "join_timeout=5"}});
  EXPECT_EQ(options.nodes, 3);
  EXPECT_EQ(options.node_rank, 2);
  EXPECT_EQ(options.nproc_per_node, "4");
  EXPECT_EQ(options.endpoint, (net::HostPort{"host0", 4000}));
  EXPECT_EQ(options.run_id, "j");
  EXPECT_EQ(options.rdzv_timeout, std::chrono::seconds(5));
  EXPECT_EQ(parsed_with({"run", "-n", "2", "p"}, {{"PET_NPROC_PER_NODE", "4"}}).nproc_per_node, "auto");
  EXPECT_EQ(
      parsed_with({"run", "p"}, {{"PET_NNODES", "2"}, {"PET_MASTER_ADDR", "h"}, {"PET_MASTER_PORT", "9"}}).endpoint,
      (net::HostPort{"h", 9}));
}

TEST(CommandLine, AWrongValueOfAVariableIsCalledThat) {
  const auto complaint = [](const Arguments& arguments, const std::string& name, const std::string& value) {
    Environment environment;
    environment.set(name, value);
    return std::get<Answer>(parse_command_line(arguments, environment)).err;
  };
  const auto ends = [](const std::string& text, const std::string& end) { return text.ends_with(end + "\n"); };
  const std::string nodes = complaint({"run", "p"}, "PET_NNODES", "x");
  EXPECT_NE(nodes.find("--nnodes x: give a number"), std::string::npos) << nodes;
  EXPECT_TRUE(ends(nodes, "; the variable PET_NNODES says so")) << nodes;
  const std::string together = complaint({"run", "p"}, "PET_NNODES", "2");
  EXPECT_NE(together.find("--nnodes 2: give --rdzv-endpoint"), std::string::npos) << together;
  EXPECT_TRUE(ends(together, "; the variable PET_NNODES says so")) << together;
  EXPECT_TRUE(ends(complaint({"run", "p"}, "PET_NODE_RANK", "7"), "; the variable PET_NODE_RANK says so"));
  for (const Arguments& typed : {Arguments{"run", "--nnodes", "x", "p"}, {"run", "--grace", "x", "p"}}) {
    const std::string text = complaint(typed, "PET_NNODES", "1");
    EXPECT_EQ(text.find("says so"), std::string::npos) << text;
  }
  EXPECT_EQ(parsed_with({"run", "-n", "2", "p"}, {{"PET_NPROC_PER_NODE", "x"}}).ranks, 2);
}

TEST(CommandLine, ReadsHostsThatItStartsLaunchersOn) {
  const auto options = parsed({"run", "-H", "a:2,b", "--rsh", "ssh -p 22", "-x", "A", "-x", "B=1", "./p", "-x"});
  EXPECT_EQ(options.hosts, (std::vector<HostEntry>{{"a", 2}, {"b", {}}}));
  EXPECT_EQ(options.rsh, "ssh -p 22");
  EXPECT_EQ(options.exported, (Arguments{"A", "B=1"}));
  EXPECT_EQ(options.command, (Arguments{"./p", "-x"}));
  EXPECT_EQ(options.arguments.front(), "run");
  EXPECT_TRUE(options.starts_launchers());
  EXPECT_EQ(parsed({"run", "--hostfile", "f", "--rdzv-endpoint=h", "p"}).endpoint, (net::HostPort{"h", 0}));
  EXPECT_EQ(parsed_with({"run", "-H", "a", "p"}, {{"PET_NNODES", "3"}, {"PET_NODE_RANK", "1"}}).nodes, 1);
  EXPECT_FALSE(parsed({"run", "p"}).starts_launchers());
  EXPECT_TRUE(std::holds_alternative<AgentOptions>(parse_command_line({"agent"})));
}

TEST(CommandLine, RefusesWrongHosts) {
  EXPECT_NE(refused({"run", "-H", "a:0", "p"}).find("'0' is not a number of slots"), std::string::npos);
  EXPECT_NE(refused({"run", "-H", "a,-b", "p"}).find("'-b' is not a name of a host"), std::string::npos);
  EXPECT_NE(refused({"run", "-H", "a", "--hostfile", "f", "p"}).find("give only one of the two"), std::string::npos);
  EXPECT_NE(refused({"run", "-H", "a", "--nnodes=1", "p"}).find("leave out --nnodes"), std::string::npos);
  EXPECT_NE(refused({"run", "-x", "A", "p"}).find("-H or --hostfile"), std::string::npos);
  EXPECT_NE(refused({"run", "--rsh", "ssh", "p"}).find("-H or --hostfile"), std::string::npos);
  EXPECT_NE(refused({"run", "-H", "a", "-x", "=1", "p"}).find("give NAME or NAME=VALUE"), std::string::npos);
}

TEST(CommandLine, RefusesWrongValuesOfSeveralHosts) {
  for (const std::string bad : {"0", "x", "4097", "3:2", "2:", ":2", "-1"}) {
    EXPECT_NE(refused({"run", "--nnodes", bad, "p"}).find("--nnodes " + bad + ": give a number of hosts"),
              std::string::npos);
  }
  EXPECT_NE(refused({"run", "--nnodes=4:2", "p"}).find("or LEAST:MOST"), std::string::npos);
  EXPECT_NE(refused({"run", "--nnodes=2:4", "--rdzv-endpoint=h", "--rdzv-wait=x", "p"}).find("--rdzv-wait x: give"),
            std::string::npos);
  EXPECT_NE(refused({"run", "--nnodes=2", "--rdzv-endpoint=h", "--rdzv-wait=5", "p"}).find("all hosts are waited for"),
            std::string::npos);
  EXPECT_NE(refused({"run", "--node-rank=1", "p"}).find("from 0 to 0"), std::string::npos);
  EXPECT_NE(refused({"run", "--nnodes=3", "--node-rank=3", "p"}).find("from 0 to 2"), std::string::npos);
  EXPECT_NE(refused({"run", "--nnodes=2", "p"}).find("give --rdzv-endpoint HOST:PORT"), std::string::npos);
  EXPECT_NE(refused({"run", "--nnodes=2", "--rdzv-endpoint=:29400", "p"}).find("give --rdzv-endpoint"),
            std::string::npos);
  EXPECT_NE(refused({"run", "--nnodes=2", "--rdzv-endpoint=h:x", "p"}).find("--rdzv-endpoint: "), std::string::npos);
  EXPECT_NE(refused({"run", "--nnodes=2", "--rdzv-endpoint=h:0", "p"}).find("give --rdzv-endpoint"), std::string::npos);
  EXPECT_NE(refused({"run", "--nnodes=2", "--rdzv-endpoint=h", "-n", "4", "p"}).find("--nproc-per-node"),
            std::string::npos);
  for (const std::string bad : {"0", "x", "-1"}) {
    EXPECT_NE(refused({"run", "--rdzv-timeout", bad, "p"}).find("--rdzv-timeout " + bad), std::string::npos);
  }
  EXPECT_NE(refused({"run", "--rdzv-backend=etcd", "p"}).find("static or c10d"), std::string::npos);
  EXPECT_NE(refused({"run", "--rdzv-conf=read_timeout=3", "p"}).find("lockstep has no setting 'read_timeout=3'"),
            std::string::npos);
  for (const char* bad : {"x", "-1", "1000001", "1.5"}) {
    EXPECT_NE(refused({"run", std::string("--max-restarts=") + bad, "p"})
                  .find(std::string("--max-restarts ") + bad + ": give a number from 0 to 1000000"),
              std::string::npos)
        << bad;
  }
}

TEST(CommandLine, TeeHasTorchrunsSpellingsAndNeedsNoValue) {
  const auto streams = [](const Arguments& flags) {
    Arguments arguments = {"run", "--log-dir", "d"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const auto options = parsed(arguments);
    EXPECT_EQ(options.command, (Arguments{"./p", "--tee", "9"})) << "what follows the program is the program's";
    return std::pair(options.tee.out, options.tee.err);
  };
  const std::pair both(true, true);
  EXPECT_EQ(streams({"--tee", "./p", "--tee", "9"}), both);
  EXPECT_EQ(streams({"-t", "./p", "--tee", "9"}), both);
  EXPECT_EQ(streams({"--tee", "-n", "2", "./p", "--tee", "9"}), both);
  EXPECT_EQ(streams({"-n", "2", "--tee", "--grace", "3", "./p", "--tee", "9"}), both);
  EXPECT_EQ(streams({"--tee", "3", "./p", "--tee", "9"}), both);
  EXPECT_EQ(streams({"--tee=3", "./p", "--tee", "9"}), both);
  EXPECT_EQ(streams({"-t", "1", "./p", "--tee", "9"}), std::pair(true, false));
  EXPECT_EQ(streams({"-t2", "./p", "--tee", "9"}), std::pair(false, true));
  EXPECT_EQ(streams({"--tee", "0", "./p", "--tee", "9"}), std::pair(false, false));
  EXPECT_EQ(streams({"--torch-store", "--tee", "--", "./p", "--tee", "9"}), both);
  EXPECT_EQ(parsed({"run", "./p", "--tee"}).command, (Arguments{"./p", "--tee"}));
  for (const std::string bad : {"4", "0:3", "12"}) {
    EXPECT_NE(refused({"run", "--log-dir=d", "--tee", bad, "p"}).find("--tee " + bad + ": give 1 for stdout"),
              std::string::npos);
  }
  EXPECT_NE(refused({"run", "--tee", "3", "p"}).find("give --log-dir DIR"), std::string::npos);
  EXPECT_FALSE(parsed({"run", "--tee", "0", "p"}).tee.out) << "nothing to show twice";
}

TEST(CommandLine, RanksAreShownBesideTheirFiles) {
  const auto options = parsed({"run", "--log-dir=d", "--ranks", "0,3-4", "p"});
  EXPECT_TRUE(options.shown_ranks.contains(3));
  EXPECT_FALSE(options.shown_ranks.contains(1));
  EXPECT_TRUE(options.tee.out && options.tee.err) << "to be shown";
  EXPECT_FALSE(parsed({"run", "--log-dir=d", "--ranks=0", "--tee=1", "p"}).tee.err);
  EXPECT_TRUE(parsed({"run", "p"}).shown_ranks.is_all());
  for (const std::string bad : {"x", "3-1", "1,", "-1"}) {
    EXPECT_NE(refused({"run", "--ranks=" + bad, "p"}).find("--ranks " + bad + ": give ranks"), std::string::npos);
  }
}

TEST(CommandLine, BindsToCoresOrNodes) {
  EXPECT_EQ(parsed({"run", "p"}).binding, Binding::none);
  EXPECT_EQ(parsed({"run", "--bind", "core", "p"}).binding, Binding::core);
  EXPECT_EQ(parsed({"run", "--bind=numa", "p"}).binding, Binding::numa);
  EXPECT_EQ(parsed({"run", "--bind=none", "p"}).binding, Binding::none);
  for (const std::string bad : {"socket", "hwthread", "cores"}) {
    EXPECT_NE(refused({"run", "--bind", bad, "p"}).find("--bind " + bad + ": give core, numa or none"),
              std::string::npos);
  }
}

RunsOptions runs(const Arguments& arguments) {
  auto result = parse_command_line(arguments);
  if (const auto* answer = std::get_if<Answer>(&result)) {
    ADD_FAILURE() << "refused: " << answer->err;
    return {};
  }
  return std::get<RunsOptions>(result);
}

TEST(CommandLine, ReadsWhatIsAskedOfARun) {
  EXPECT_EQ(runs({"ps"}).what, RunsOptions::What::ps);
  EXPECT_TRUE(runs({"ps", "--json"}).json);
  const auto logs = runs({"logs", "run-1", "--follow", "-n", "7"});
  EXPECT_EQ(logs.what, RunsOptions::What::logs);
  EXPECT_EQ(logs.run, "run-1");
  EXPECT_TRUE(logs.follow);
  EXPECT_EQ(logs.lines, 7u);
  EXPECT_EQ(runs({"logs", "-f", "--lines=0", "r"}).lines, 0u);
  EXPECT_EQ(runs({"logs", "r"}).lines, 50u);
  EXPECT_EQ(runs({"stop", "r"}).what, RunsOptions::What::stop);
  EXPECT_EQ(runs({"logs"}).run, "") << "the only run";
  EXPECT_NE(refused({"stop"}).find("give one run: lockstep stop RUN"), std::string::npos);
  EXPECT_NE(refused({"stop", "a", "b"}).find("give one run: lockstep stop RUN"), std::string::npos);
  EXPECT_NE(refused({"stop", ""}).find("give one run: lockstep stop RUN"), std::string::npos);
  EXPECT_NE(std::get<Answer>(parse_command_line({"help"}, {})).out.find("Usage: lockstep"), std::string::npos);
  for (const Arguments& words : {Arguments{"run"}, {"top"}, {"store", "serve"}, {"run", "all"}}) {
    Arguments help = words, flag = words;
    help.insert(help.begin(), "help");
    flag.insert(flag.end() - (words.back() == "all" ? 1 : 0), "--help");
    const auto answer = std::get<Answer>(parse_command_line(help, {}));
    EXPECT_EQ(answer.exit_code, 0);
    EXPECT_EQ(answer.out, std::get<Answer>(parse_command_line(flag, {})).out);
  }
  EXPECT_NE(std::get<Answer>(parse_command_line({"help", "rnu"}, {})).err.find("did you mean run?"), std::string::npos);
  EXPECT_EQ(std::get<Answer>(parse_command_line({"version"}, {})).out, "lockstep " LOCKSTEP_VERSION "\n");
  EXPECT_NE(refused({"logs", "r", "-n", "-3"}).find("--lines"), std::string::npos);
  EXPECT_NE(refused({"logs", "r", "-n", "x"}).find("--lines x: give a number from 0 to 1000000"), std::string::npos);
  EXPECT_NE(refused({"ps", "r"}).find("not expected: r"), std::string::npos);
  const auto top = runs({"top", "r", "--once", "--json", "--interval", "0.5"});
  EXPECT_EQ(top.what, RunsOptions::What::top);
  EXPECT_TRUE(top.once && top.json);
  EXPECT_EQ(top.interval, std::chrono::milliseconds(500));
  EXPECT_EQ(runs({"top"}).run, "") << "the only one";
  EXPECT_NE(refused({"top", "--interval", "0"}).find("--interval 0: give seconds above 0"), std::string::npos);
  EXPECT_EQ(runs({"inspect", "r"}).what, RunsOptions::What::inspect);
  const auto trace = runs({"trace", "--steps", "20", "-o", "t.json"});
  EXPECT_EQ(trace.steps, 20u);
  EXPECT_EQ(trace.file, "t.json");
  EXPECT_NE(refused({"trace", "--steps", "0"}).find("--steps 0: give a number from 1"), std::string::npos);
}

TEST(CommandLine, MetricsAreOnLoopbackUnlessAnAddressIsGiven) {
  EXPECT_EQ(parsed({"run", "--metrics-port", "9400", "p"}).metrics, (net::HostPort{"127.0.0.1", 9400}));
  EXPECT_EQ(parsed({"run", "--metrics-port", "0.0.0.0:0", "p"}).metrics, (net::HostPort{"0.0.0.0", 0}));
  EXPECT_EQ(parsed({"run", "--metrics-port", "[::1]:9400", "p"}).metrics, (net::HostPort{"::1", 9400}));
  EXPECT_FALSE(parsed({"run", "p"}).metrics);
  EXPECT_NE(refused({"run", "--metrics-port", "65536", "p"}).find("ports are 0 to 65535"), std::string::npos);
  for (const std::string bad : {"x", "65536", "-1", "host", "host:port"}) {
    EXPECT_NE(refused({"run", "--metrics-port", bad, "p"}).find("--metrics-port " + bad + ": give a port, or"),
              std::string::npos)
        << bad;
  }
}

TEST(CommandLine, ReadsSecondsAndPorts) {
  EXPECT_EQ(parsed({"run", "--grace", "0", "p"}).grace, std::chrono::milliseconds(0));
  EXPECT_EQ(parsed({"run", "--grace", "1.5", "p"}).grace, std::chrono::milliseconds(1500));
  EXPECT_EQ(parsed({"run", "--timeout", "30", "p"}).rank_variables.at("LOCKSTEP_TIMEOUT"), "30");
  for (const std::string bad : {"-1", "x", "1s", "nan", "inf", "86401"}) refused({"run", "--grace", bad, "p"});
  for (const std::string bad : {"0", "-3", "x", "1.5"}) refused({"run", "--timeout", bad, "p"});
  for (const std::string bad : {"-1", "65536", "x"}) refused({"run", "--master-port", bad, "p"});
  refused({"run", "--master-addr", "", "p"});
  refused({"run", "--grace"});
}

TEST(CommandLine, SwitchesTheTorchStoreAndLiveness) {
  EXPECT_TRUE(parsed({"run", "--torch-store", "p"}).torch_store);
  EXPECT_TRUE(parsed({"run", "--torch_store", "p"}).torch_store);
  for (const std::string good : {"off", "on", "2", "30.5"}) {
    EXPECT_EQ(parsed({"run", "--liveness", good, "p"}).rank_variables.at("LOCKSTEP_LIVENESS"), good);
  }
  for (const std::string bad : {"no", "0", "OFF", "1.9"}) refused({"run", "--liveness", bad, "p"});
}

TEST(CommandLine, ReadsTheStoreServersAddressAndLimits) {
  const auto defaults = served({});
  EXPECT_EQ(defaults.server.listen, (net::HostPort{"127.0.0.1", 0}));
  EXPECT_TRUE(defaults.authenticate);
  EXPECT_EQ(defaults.secret_file, "");
  EXPECT_EQ(defaults.server.max_clients, store::TcpStoreServerOptions().max_clients);
  const auto options =
      served({"--host", "10.0.0.7", "--port=29400", "--secret-file", "f", "--max-clients", "12", "--max-memory", "2G",
              "--max-key=4K", "--max-value=1M", "--max-count", "7", "--greeting-timeout", "0.5"});
  EXPECT_EQ(options.server.listen, (net::HostPort{"10.0.0.7", 29400}));
  EXPECT_EQ(options.secret_file, "f");
  EXPECT_EQ(options.server.max_clients, 12u);
  EXPECT_EQ(options.server.max_stored_bytes, std::size_t{2} << 30);
  EXPECT_EQ(options.server.limits.max_key_bytes, 4096u);
  EXPECT_EQ(options.server.limits.max_value_bytes, std::size_t{1} << 20);
  EXPECT_EQ(options.server.limits.max_count, 7u);
  EXPECT_EQ(options.server.greeting_timeout, std::chrono::milliseconds(500));
  EXPECT_FALSE(served({"--store-auth=off"}).authenticate);
  EXPECT_TRUE(served({"--store_auth", "on"}).authenticate);
}

TEST(CommandLine, EveryLimitOfTheServerHasAFlagThatSetsItAndSaysItsDefault) {
  using Server = store::TcpStoreServerOptions;
  const std::vector<std::pair<std::string, std::size_t (*)(const Server&)>> limits = {
      {"--max-clients", [](const Server& server) { return server.max_clients; }},
      {"--max-memory", [](const Server& server) { return server.max_stored_bytes; }},
      {"--max-keys", [](const Server& server) { return server.max_keys; }},
      {"--max-key", [](const Server& server) { return server.limits.max_key_bytes; }},
      {"--max-value", [](const Server& server) { return server.limits.max_value_bytes; }},
      {"--max-count", [](const Server& server) { return server.limits.max_count; }},
      {"--max-waited-keys", [](const Server& server) { return server.max_waited_keys; }},
      {"--max-greeting-clients", [](const Server& server) { return server.max_greeting_clients; }},
      {"--max-client-memory", [](const Server& server) { return server.max_client_bytes; }},
      {"--max-held-memory", [](const Server& server) { return server.max_held_bytes; }},
  };
  const auto help = answered({"store", "serve", "--help"}).out;
  // "  --max-key SIZE   Longest key. Default 8K"; a default may stand on the next line.
  const std::regex row("\n  (--max-[a-z-]+) [^.]*\\.\\s+Default\\s+(\\w+)");
  std::map<std::string, std::string> defaults;
  for (auto it = std::sregex_iterator(help.begin(), help.end(), row); it != std::sregex_iterator(); ++it) {
    defaults[(*it)[1]] = (*it)[2];
  }
  EXPECT_EQ(defaults.size(), limits.size()) << help;
  for (const auto& [name, limit] : limits) {
    Arguments arguments = {name, "33554432"};
    if (name == "--max-held-memory")
      arguments.insert(arguments.end(), {"--max-client-memory", "32M"});  // of all, of one
    EXPECT_EQ(limit(served(arguments).server), 33554432u) << name;
    ASSERT_TRUE(defaults.contains(name)) << name;
    // The default, typed, is the default.
    EXPECT_EQ(limit(served({name, defaults[name]}).server), limit(Server())) << name;
  }
}

TEST(CommandLine, AMessageHoldsTheLargestValue) {
  const auto options =
      served({"--max-value", "512M", "--max-memory", "1G", "--max-client-memory", "2G", "--max-held-memory", "2G"});
  EXPECT_GT(options.server.limits.max_message_bytes, std::size_t{512} << 20);
}

TEST(CommandLine, RefusesBadStoreFlagsInOneLine) {
  const std::vector<std::pair<Arguments, std::string>> table = {
      {{"--port", "70000"}, "--port 70000"},
      {{"--port", "http"}, "65535"},
      {{"--store-auth", "maybe"}, "on or off"},
      {{"--store-auth=off", "--secret-file", "f"}, "has no secret"},
      {{"--max-clients", "0"}, "--max-clients 0"},
      {{"--max-memory", "lots"}, "--max-memory lots"},
      {{"--max-memory", "1K"}, "would not fit"},
      {{"--max-value", "0"}, "--max-value 0"},
      {{"--max-value", "512M"}, "--max-client-memory"},
      {{"--max-client-memory", "2G"}, "--max-held-memory"},
      {{"--max-value", "9999999T"}, "--max-value"},
      {{"--greeting-timeout", "0"}, "above 0"},
      {{"--bogus"}, "--bogus"},
      {{"extra"}, "extra"},
  };
  for (const auto& [flags, says] : table) {
    Arguments arguments = {"store", "serve"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const auto text = refused(arguments);
    EXPECT_NE(text.find(says), std::string::npos) << text;
    EXPECT_TRUE(text.starts_with("lockstep store serve: ")) << text;
  }
  EXPECT_NE(refused({"store"}).find("lockstep store serve"), std::string::npos);
  EXPECT_NE(refused({"store", "bogus"}).find("bogus"), std::string::npos);
}

TEST(CommandLine, ReadsTheDoctorsFlags) {
  const auto result = parse_command_line({"doctor", "--json", "--probe-timeout", "0.25"});
  ASSERT_TRUE(std::holds_alternative<DoctorOptions>(result));
  EXPECT_TRUE(std::get<DoctorOptions>(result).json);
  EXPECT_EQ(std::get<DoctorOptions>(result).probe_timeout, std::chrono::milliseconds(250));
  EXPECT_FALSE(std::get<DoctorOptions>(parse_command_line({"doctor"})).json);
  refused({"doctor", "--bogus"});
  refused({"doctor", "./train"});
  refused({"doctor", "--probe-timeout", "0"});
  refused({"doctor", "--", "x"});
  const auto hosts = std::get<DoctorOptions>(
      parse_command_line({"doctor", "-H", "a,b", "--rsh", "my sh", "-x", "MINE", "--rdzv-endpoint", "a0"}));
  EXPECT_EQ(hosts.run.hosts, (std::vector<HostEntry>{{"a", {}}, {"b", {}}}));
  EXPECT_EQ(hosts.run.rsh, "my sh");
  EXPECT_EQ(hosts.run.exported, (Arguments{"MINE"}));
  EXPECT_EQ(hosts.run.endpoint.host, "a0");
  EXPECT_EQ(hosts.host_flags, (Arguments{"-H", "a,b", "--rsh", "my sh", "--rdzv-endpoint", "a0", "-x", "MINE"}));
  EXPECT_FALSE(hosts.gpus);
  const auto gpus = std::get<DoctorOptions>(parse_command_line({"doctor", "--gpus"}));
  EXPECT_TRUE(gpus.gpus);
  EXPECT_EQ(gpus.host_flags, Arguments{});
  EXPECT_EQ(std::get<DoctorOptions>(parse_command_line({"doctor", "--hostfile", "f"})).run.hostfile, "f");
  EXPECT_NE(refused({"doctor", "-H", "a:0"}).find("'0' is not a number of slots"), std::string::npos);
  EXPECT_NE(refused({"doctor", "--rsh", "x"}).find("-H or --hostfile"), std::string::npos);
  EXPECT_NE(refused({"doctor", "--rdzv-endpoint", "x"}).find("-H or --hostfile"), std::string::npos);
}

// Held to --help, so that a new flag comes with its wrong value or says here why there is none.
TEST(CommandLine, EachFlagWithAValueNamesItselfAndTheValueThatIsWrong) {
  struct Wrong {
    std::string value;
    Arguments others = {};  // without which the value is not looked at
  };
  const Arguments several = {"--nnodes=2:4", "--rdzv-endpoint=h"};
  const std::map<std::string, Wrong> wrong = {
      {"--nproc-per-node", {"0"}},
      {"-n", {"x"}},
      {"--devices", {"0,x"}},
      {"--log-dir", {""}},
      {"--ranks", {"3-1"}},
      {"--tee", {"=4"}},
      {"--trace", {""}},
      {"--metrics-port", {"65536"}},
      {"--bind", {"socket"}},
      {"--grace", {"-1"}},
      {"--backend", {"gpu"}},
      {"--timeout", {"soon"}},
      {"--liveness", {"maybe"}},
      {"--hang-timeout", {"1"}},
      {"--stop-timeout", {"0"}},
      {"--requeue-exit-code", {"256"}},
      {"--master-addr", {""}},
      {"--master-port", {"x"}},
      {"--nnodes", {"3:2"}},
      {"--node-rank", {"7"}},
      {"--rdzv-endpoint", {"h:x", {"--nnodes=2"}}},
      {"--rdzv-id", {""}},
      {"--rdzv-timeout", {"0"}},
      {"--rdzv-wait", {"x", several}},
      {"--rdzv-backend", {"etcd"}},
      {"--rdzv-conf", {"read_timeout=3"}},
      {"-H", {"a:0"}},
      {"--hostfile", {""}},
      {"--rsh", {""}},
      {"-x", {"=1", {"-H", "a"}}},
      {"--max-restarts", {"-1"}},
      {"--health-check", {""}},
  };
  std::set<std::string> in_help;
  const std::string help = answered({"run", "--help-all"}).out;
  // "  --grace SECONDS", "  -H,--host HOST[:SLOTS],...", "  -t,--tee [1|2|3]"; a flag without a value stands alone.
  const std::regex with_value("\n  (?:-t,)?(-[-a-zA-Z]+)(?:,--[a-z-]+)? \\[?[A-Za-z0-9]");
  for (auto it = std::sregex_iterator(help.begin(), help.end(), with_value); it != std::sregex_iterator(); ++it) {
    in_help.insert((*it)[1]);
  }
  for (const auto& flag : in_help) EXPECT_TRUE(wrong.contains(flag)) << flag << " has no wrong value in this table";
  for (const auto& [flag, bad] : wrong) {
    EXPECT_TRUE(in_help.contains(flag)) << flag << " is not in " << help;
    Arguments arguments = {"run"};
    arguments.insert(arguments.end(), bad.others.begin(), bad.others.end());
    const bool is_joined = bad.value.starts_with("=") && flag != "-x";
    arguments.push_back(is_joined ? flag + bad.value : flag);
    if (!is_joined) arguments.push_back(bad.value);
    arguments.push_back("p");
    const std::string said = refused(arguments);
    EXPECT_NE(said.find(flag), std::string::npos) << said;
    EXPECT_NE(said.find(bad.value.substr(is_joined ? 1 : 0)), std::string::npos) << said;
  }
}

const std::vector<Arguments> kCommands = {{"run"},    {"ps"},        {"top"},         {"inspect"},
                                          {"trace"},  {"logs"},      {"stop"},        {"report"},
                                          {"doctor"}, {"snapshots"}, {"bisect-step"}, {"store", "serve"}};

std::string help_of(Arguments command, const Arguments& flags = {"--help"}) {
  command.insert(command.end(), flags.begin(), flags.end());
  const auto answer = answered(command);
  EXPECT_EQ(answer.exit_code, 0);
  EXPECT_EQ(answer.err, "");
  return answer.out;
}

TEST(Help, EachPageFitsEightyColumnsAndTellsOfItsCommandAlone) {
  std::map<std::string, std::string> pages = {{"lockstep", help_of({})},
                                              {"run, all", help_of({"run"}, {"--help-all"})}};
  for (const Arguments& command : kCommands) {
    std::string name = "lockstep";
    for (const auto& word : command) name += " " + word;
    pages[name] = help_of(command);
    EXPECT_EQ(pages[name].find("Usage: " + name), pages[name].rfind("Usage: ")) << pages[name];
  }
  std::set<std::string> ends;
  for (const auto& [name, page] : pages) {
    EXPECT_NE(page.find("Examples:\n"), std::string::npos) << page;
    EXPECT_EQ(page.find("\n\n\n"), std::string::npos) << page;
    std::istringstream lines(page);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
    EXPECT_TRUE(ends.insert(page.substr(page.find("Examples:"))).second) << "of another command too: " << page;
  }
}

TEST(Help, OfRunFitsAScreenAndTheLongOneHasEveryFlagOfIt) {
  const std::string brief = help_of({"run"});
  EXPECT_LE(std::count(brief.begin(), brief.end(), '\n'), 40);
  EXPECT_EQ(help_of({"run"}, {"-h"}), brief);
  EXPECT_EQ(help_of({"run", "-n", "2"}), brief);
  const std::string all = help_of({"run"}, {"--help-all"});
  EXPECT_EQ(help_of({"run"}, {"--help", "all"}), all);
  EXPECT_EQ(all.find("_per_node"), std::string::npos) << "one spelling is enough";
  EXPECT_NE(all.find("\nExit codes:\n"), std::string::npos);
  const std::regex flag("(?:^|[ \n])(--?[a-zA-Z][-a-z]*)");
  for (auto it = std::sregex_iterator(brief.begin(), brief.end(), flag); it != std::sregex_iterator(); ++it) {
    const std::string name = (*it)[1];
    if (name == "--epochs") continue;  // the example program's
    EXPECT_TRUE(std::regex_search(all, std::regex("\n  (-\\w,)?" + name + "[ ,\n]"))) << name;
  }
  EXPECT_EQ(parsed({"run", "p", "--help", "all"}).command, (Arguments{"p", "--help", "all"}));
}

TEST(Help, IsWrappedAtBlanks) {
  EXPECT_EQ(wrapped("a word, and another", 7), "a word,\nand\nanother");
  EXPECT_EQ(wrapped("longer-than-that is", 6), "longer-than-that\nis");
  EXPECT_EQ(wrapped("", 6), "");
}

TEST(CommandLine, AnswersVersion) { EXPECT_EQ(answered({"--version"}).out, "lockstep " LOCKSTEP_VERSION "\n"); }

}  // namespace
}  // namespace lockstep::launcher::command_line_test
