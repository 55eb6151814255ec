// SPDX-License-Identifier: Apache-2.0
// Command lines as a user types them: what is read of each, or the line that refuses it (tests/messages/launcher.txt).
#include "launcher/flags/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <iomanip>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "launcher/base/exit_codes.h"
#include "launcher/flags/help_format.h"
#include "tests/support/messages.h"

namespace lockstep::launcher::command_line_test {
namespace {

using lockstep::testing::expect_message;

// Of "NAME=value run -n 2 '' 'two words'": variables in front, quotes of a shell.
Command parsed(const std::string& line) {
  std::istringstream text(line);
  Environment variables;
  std::vector<std::string> words;
  for (std::string word; text >> std::quoted(word, '\'');) {
    const auto equals = word.find('=');
    if (words.empty() && equals != std::string::npos && word.front() != '-') {
      variables.set(word.substr(0, equals), word.substr(equals + 1));
    } else {
      words.push_back(word);
    }
  }
  return parse_command_line(words, variables);
}

Answer answered(const std::string& line) {
  const Command result = parsed(line);
  if (const auto* answer = std::get_if<Answer>(&result)) return *answer;
  ADD_FAILURE() << "accepted: " << line;
  return {};
}

// The complaint about a wrong command line: one line, exit code 2, nothing on stdout.
std::string refused(const std::string& line) {
  const auto answer = answered(line);
  EXPECT_EQ(answer.exit_code, kExitUsage) << line;
  EXPECT_EQ(answer.out, "");
  EXPECT_EQ(answer.err.find('\n'), answer.err.size() - 1) << answer.err;
  return answer.err;
}

std::string shown(const std::string& text) { return text; }
std::string shown(const std::vector<std::string>& words) { return fmt::format("[{}]", fmt::join(words, "|")); }
std::string shown(std::chrono::nanoseconds time) { return fmt::format("{} ms", time / std::chrono::milliseconds(1)); }
std::string shown(const net::HostPort& address) { return address.to_string(); }
std::string shown(const Tee& tee) { return std::string(tee.out ? "out" : "") + (tee.err ? "err" : ""); }
std::string shown(const RankSet& ranks) { return ranks.text(); }
std::string shown(Binding binding) {
  return binding == Binding::core ? "core" : binding == Binding::numa ? "numa" : "";
}
std::string shown(RunsOptions::What what) {
  return std::vector<std::string>{"ps", "top", "inspect", "trace", "logs", "stop"}.at(static_cast<std::size_t>(what));
}
std::string shown(const std::vector<HostEntry>& hosts) {
  std::string text;
  for (const HostEntry& host : hosts)
    text += fmt::format("{}{}/{}", text.empty() ? "" : " ", host.name, host.slots.value_or(-1));
  return text;
}
std::string shown(const std::map<std::string, std::string>& variables) {
  std::string text;
  for (const auto& [name, value] : variables) text += name + "=" + value;
  return text;
}
template <typename Number>
requires std::is_arithmetic_v<Number> std::string shown(Number number) { return std::to_string(number); }
template <typename Value>
std::string shown(const std::optional<Value>& value) {
  return value ? shown(*value) : "none";
}

// "name value, name value" of the fields that differ from a default's; with `all`, of every one.
class Fields {
 public:
  explicit Fields(bool all = false) : all_(all) {}

  template <typename Owner, typename Value>
  Fields& add(const char* name, const Owner& owner, Value Owner::*field) {
    const std::string value = shown(owner.*field);
    if (all_ || value != shown(Owner().*field)) text_ += (text_.empty() ? "" : ", ") + std::string(name) + " " + value;
    return *this;
  }
  const std::string& text() const { return text_; }

  Fields& of(const RunOptions& run) {
    add("nproc", run, &RunOptions::nproc_per_node).add("ranks", run, &RunOptions::ranks);
    add("log_dir", run, &RunOptions::log_dir).add("tee", run, &RunOptions::tee);
    add("shown", run, &RunOptions::shown_ranks).add("binding", run, &RunOptions::binding);
    add("metrics", run, &RunOptions::metrics).add("grace", run, &RunOptions::grace);
    add("master", run, &RunOptions::master_addr).add("master_port", run, &RunOptions::master_port);
    add("nodes", run, &RunOptions::nodes).add("least", run, &RunOptions::least_nodes);
    add("restarts", run, &RunOptions::max_restarts).add("node_rank", run, &RunOptions::node_rank);
    add("endpoint", run, &RunOptions::endpoint).add("run_id", run, &RunOptions::run_id);
    add("rdzv_timeout", run, &RunOptions::rdzv_timeout).add("rdzv_wait", run, &RunOptions::rdzv_wait);
    add("hosts", run, &RunOptions::hosts).add("hostfile", run, &RunOptions::hostfile).add("rsh", run, &RunOptions::rsh);
    add("exported", run, &RunOptions::exported).add("torch_store", run, &RunOptions::torch_store);
    return add("variables", run, &RunOptions::rank_variables).add("command", run, &RunOptions::command);
  }
  Fields& of(const ServeOptions& serve) {
    using Server = store::TcpStoreServerOptions;
    add("listen", serve.server, &Server::listen).add("auth", serve, &ServeOptions::authenticate);
    add("secret_file", serve, &ServeOptions::secret_file).add("clients", serve.server, &Server::max_clients);
    return add("memory", serve.server, &Server::max_stored_bytes)
        .add("greeting", serve.server, &Server::greeting_timeout);
  }
  Fields& of(const DoctorOptions& doctor) {
    add("json", doctor, &DoctorOptions::json).add("probe_timeout", doctor, &DoctorOptions::probe_timeout);
    add("gpus", doctor, &DoctorOptions::gpus).add("flags", doctor, &DoctorOptions::host_flags);
    return of(doctor.run);
  }
  Fields& of(const SnapshotsOptions& snapshots) {
    add("folder", snapshots, &SnapshotsOptions::folder);
    return add("output", snapshots, &SnapshotsOptions::output);
  }
  Fields& of(const ReportOptions& report) {
    return add("folders", report, &ReportOptions::folders).add("file", report, &ReportOptions::file);
  }
  Fields& of(const RunsOptions& runs) {
    add("what", runs, &RunsOptions::what).add("run", runs, &RunsOptions::run).add("json", runs, &RunsOptions::json);
    add("once", runs, &RunsOptions::once).add("interval", runs, &RunsOptions::interval);
    add("steps", runs, &RunsOptions::steps).add("file", runs, &RunsOptions::file);
    return add("follow", runs, &RunsOptions::follow).add("lines", runs, &RunsOptions::lines);
  }
  Fields& of(const BisectStepOptions&) { return *this; }
  Fields& of(const ReplayOptions& replay) {
    add("from", replay, &ReplayOptions::from).add("to", replay, &ReplayOptions::to);
    return add("digests", replay, &ReplayOptions::digests).of(replay.run);
  }
  Fields& of(const AgentOptions&) { return *this; }
  Fields& of(const Answer& answer) {
    text_ = "refused: " + answer.out + answer.err;
    return *this;
  }

 private:
  bool all_;
  std::string text_;
};

std::string read_of(const std::string& line, bool all = false) {
  return std::visit([all](const auto& options) { return Fields(all).of(options).text(); }, parsed(line));
}

struct Accepted {
  const char* line;
  const char* fields;
};
void expect_accepted(const std::vector<Accepted>& table) {
  for (const auto& [line, fields] : table) EXPECT_EQ(read_of(line), fields) << line;
}

TEST(CommandLine, DefaultsAreTheDocumentedOnes) {
  EXPECT_EQ(
      read_of("run ./train", true),
      "nproc auto, ranks none, log_dir , tee , shown , binding , metrics none, grace 700 ms, master 127.0.0.1, "
      "master_port 0, nodes 1, least 1, restarts 0, node_rank none, endpoint :0, run_id , rdzv_timeout 300000 ms, "
      "rdzv_wait 30000 ms, hosts , hostfile , rsh , exported [], torch_store 0, variables , command [./train]");
  EXPECT_TRUE(std::get<RunOptions>(parsed("run p")).shown_ranks.is_all());
  EXPECT_EQ(std::get<ServeOptions>(parsed("store serve")).server.listen, (net::HostPort{"127.0.0.1", 0}));
}

TEST(CommandLine, ReadsTheFlagsOfARun) {
  expect_accepted({
      {"run --nproc-per-node 4 p", "nproc 4, command [p]"},
      {"run --nproc-per-node=4 p", "nproc 4, command [p]"},
      {"run --nproc_per_node=gpu p", "nproc gpu, command [p]"},
      {"run -n 4 p", "ranks 4, command [p]"},
      {"run -n4 p", "ranks 4, command [p]"},
      {"run --log_dir d p", "log_dir d, command [p]"},
      {"run --log-dir=d p", "log_dir d, command [p]"},
      {"run --standalone --nnodes=1 --node_rank=0 --max_restarts=0 --nproc_per_node=2 --master_addr=localhost "
       "--master_port=29500 p",
       "nproc 2, master localhost, master_port 29500, node_rank 0, command [p]"},
      {"run --nnodes=1:1 p", "command [p]"},
      {"run --bind core p", "binding core, command [p]"},
      {"run --bind=numa p", "binding numa, command [p]"},
      {"run --bind=none p", "command [p]"},
      {"run --metrics-port 9400 p", "metrics 127.0.0.1:9400, command [p]"},
      {"run --metrics-port 0.0.0.0:0 p", "metrics 0.0.0.0:0, command [p]"},
      {"run --metrics-port [::1]:9400 p", "metrics [::1]:9400, command [p]"},
      {"run --grace 0 p", "grace 0 ms, command [p]"},
      {"run --grace 1.5 p", "grace 1500 ms, command [p]"},
      {"run --timeout 30 p", "variables LOCKSTEP_TIMEOUT=30, command [p]"},
      {"run --torch-store p", "torch_store 1, command [p]"},
      {"run --torch_store p", "torch_store 1, command [p]"},
      {"run --liveness off p", "variables LOCKSTEP_LIVENESS=off, command [p]"},
      {"run --liveness on p", "variables LOCKSTEP_LIVENESS=on, command [p]"},
      {"run --liveness 2 p", "variables LOCKSTEP_LIVENESS=2, command [p]"},
      {"run --liveness 30.5 p", "variables LOCKSTEP_LIVENESS=30.5, command [p]"},
      {"LOCKSTEP_BACKEND=gpu run --backend tcp p", "variables LOCKSTEP_BACKEND=tcp, command [p]"},
      // What follows the program is the program's.
      {"run -n 2 p -n 3 --help --version --bogus -- x", "ranks 2, command [p|-n|3|--help|--version|--bogus|--|x]"},
      {"run -- p --help -n 3 -- x", "command [p|--help|-n|3|--|x]"},
      {"run -- --strange-name", "command [--strange-name]"},
      {"run p ''", "command [p|]"},
      {"run p --help all", "command [p|--help|all]"},
      // --tee needs no value.
      {"run --log-dir d --tee ./p --tee 9", "log_dir d, tee outerr, command [./p|--tee|9]"},
      {"run --log-dir d -t ./p --tee 9", "log_dir d, tee outerr, command [./p|--tee|9]"},
      {"run --log-dir d --tee -n 2 ./p", "ranks 2, log_dir d, tee outerr, command [./p]"},
      {"run --log-dir d -n 2 --tee --grace 3 p", "ranks 2, log_dir d, tee outerr, grace 3000 ms, command [p]"},
      {"run --log-dir d --tee 3 p", "log_dir d, tee outerr, command [p]"},
      {"run --log-dir d --tee=3 p", "log_dir d, tee outerr, command [p]"},
      {"run --log-dir d -t 1 p", "log_dir d, tee out, command [p]"},
      {"run --log-dir d -t2 p", "log_dir d, tee err, command [p]"},
      {"run --log-dir d --tee 0 p", "log_dir d, command [p]"},
      {"run --log-dir d --torch-store --tee -- p", "log_dir d, tee outerr, torch_store 1, command [p]"},
      {"run ./p --tee", "command [./p|--tee]"},
      {"run --tee 0 p", "command [p]"},  // nothing to show twice
      {"run --log-dir=d --ranks 0,3-4 p", "log_dir d, tee outerr, shown 0,3-4, command [p]"},
      {"run --log-dir=d --ranks=0 --tee=1 p", "log_dir d, tee out, shown 0, command [p]"},
  });
}

TEST(CommandLine, ReadsWhatSeveralHostsNeed) {
  expect_accepted({
      {"run --nnodes 3 --node-rank 1 --rdzv-endpoint host0:29500 --rdzv_id=train --rdzv-timeout 7 --rdzv_backend=c10d "
       "p",
       "master host0, nodes 3, least 3, node_rank 1, endpoint host0:29500, run_id train, rdzv_timeout 7000 ms, "
       "command [p]"},
      {"run --nnodes=2:2 --rdzv-endpoint=host0 p", "master host0, nodes 2, least 2, endpoint host0:29400, command [p]"},
      // As torchrun's static rendezvous has it; the port is the job's store's, so the ranks get another.
      {"run --nnodes=2 --master-addr=host0 --master-port=4000 p",
       "master host0, nodes 2, least 2, endpoint host0:4000, command [p]"},
      {"run --rdzv-conf=timeout=900,join_timeout=60 p", "rdzv_timeout 60000 ms, command [p]"},
      // Torchrun's variables count where the flag is not given.
      {"PET_NNODES=3 PET_NODE_RANK=1 PET_NPROC_PER_NODE=4 PET_RDZV_ENDPOINT=host0:4000 PET_RDZV_ID=j "
       "PET_RDZV_CONF=join_timeout=5 run --node-rank=2 p",
       "nproc 4, master host0, nodes 3, least 3, node_rank 2, endpoint host0:4000, run_id j, rdzv_timeout 5000 ms, "
       "command [p]"},
      {"PET_NPROC_PER_NODE=4 run -n 2 p", "ranks 2, command [p]"},
      {"PET_NPROC_PER_NODE=x run -n 2 p", "ranks 2, command [p]"},
      {"PET_NNODES=2 PET_MASTER_ADDR=h PET_MASTER_PORT=9 run p",
       "master h, nodes 2, least 2, endpoint h:9, command [p]"},
      {"run -H a:2,b --rsh 'ssh -p 22' -x A -x B=1 ./p -x",
       "hosts a/2 b/-1, rsh ssh -p 22, exported [A|B=1], command [./p|-x]"},
      {"run --hostfile f --rdzv-endpoint=h p", "endpoint h:0, hostfile f, command [p]"},
      {"PET_NNODES=3 PET_NODE_RANK=1 run -H a p", "hosts a/-1, command [p]"},
  });
  EXPECT_TRUE(std::get<RunOptions>(parsed("run -H a p")).starts_launchers());
  EXPECT_FALSE(std::get<RunOptions>(parsed("run p")).starts_launchers());
  EXPECT_EQ(std::get<RunOptions>(parsed("run -H a p")).arguments, (std::vector<std::string>{"run", "-H", "a", "p"}));
  EXPECT_TRUE(std::holds_alternative<AgentOptions>(parsed("agent")));
}

TEST(CommandLine, ReadsTheOtherCommands) {
  expect_accepted({
      // A folder may have the name of another command.
      {"report logs", "folders [logs]"},
      {"report logs top -o run.html", "folders [logs|top], file run.html"},
      {"snapshots logs", "folder logs"},
      {"snapshots export a b", "folder a, output b"},
      {"snapshots export", "folder export"},
      {"replay -n 3 --digests d --digests e a b -- ./train -n 1",
       "from a, to b, digests [d|e], ranks 3, command [./train|-n|1]"},
      {"ps", ""},
      {"ps --json", "json 1"},
      {"logs run-1 --follow -n 7", "what logs, run run-1, follow 1, lines 7"},
      {"logs -f --lines=0 r", "what logs, run r, follow 1, lines 0"},
      {"logs r", "what logs, run r"},
      {"logs", "what logs"},
      {"stop r", "what stop, run r"},
      {"top r --once --json --interval 0.5", "what top, run r, json 1, once 1, interval 500 ms"},
      {"top", "what top"},
      {"inspect r", "what inspect, run r"},
      {"trace --steps 20 -o t.json", "what trace, steps 20, file t.json"},
      {"store serve", ""},
      {"store serve --host 10.0.0.7 --port=29400 --secret-file f --max-clients 12 --max-memory 2G --greeting-timeout "
       "0.5",
       "listen 10.0.0.7:29400, secret_file f, clients 12, memory 2147483648, greeting 500 ms"},
      {"store serve --store-auth=off", "auth 0"},
      {"store serve --store_auth on", ""},
      {"doctor", ""},
      {"doctor --json --probe-timeout 0.25", "json 1, probe_timeout 250 ms"},
      {"doctor --gpus", "gpus 1"},
      {"doctor --hostfile f", "flags [--hostfile|f], hostfile f"},
      {"doctor -H a,b --rsh 'my sh' -x MINE --rdzv-endpoint a0",
       "flags [-H|a,b|--rsh|my sh|--rdzv-endpoint|a0|-x|MINE], endpoint a0:0, hosts a/-1 b/-1, rsh my sh, "
       "exported [MINE]"},
  });
  EXPECT_EQ(std::get<RunsOptions>(parsed("logs r")).lines, 50u);
  for (const std::string line : {"run", "top", "store serve", "run all"}) {
    const bool is_all = line.ends_with(" all");
    const Answer help = answered("help " + line);
    EXPECT_EQ(help.exit_code, 0);
    EXPECT_EQ(help.out, answered(is_all ? "run --help all" : line + " --help").out);
  }
  EXPECT_NE(answered("help").out.find("Usage: lockstep"), std::string::npos);
  for (const char* const version : {"version", "--version"})
    EXPECT_EQ(answered(version).out, "lockstep " LOCKSTEP_VERSION "\n");
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
  const auto server_of = [](const std::string& flags) {
    return std::get<ServeOptions>(parsed("store serve " + flags)).server;
  };
  const auto help = answered("store serve --help").out;
  // "  --max-key SIZE   Longest key. Default 8K"; a default may stand on the next line.
  const std::regex row("\n  (--max-[a-z-]+) [^.]*\\.\\s+Default\\s+(\\w+)");
  std::map<std::string, std::string> defaults;
  for (auto it = std::sregex_iterator(help.begin(), help.end(), row); it != std::sregex_iterator(); ++it) {
    defaults[(*it)[1]] = (*it)[2];
  }
  EXPECT_EQ(defaults.size(), limits.size()) << help;
  for (const auto& [name, limit] : limits) {
    const std::string of_one = name == "--max-held-memory" ? " --max-client-memory 32M" : "";  // of all, of one
    EXPECT_EQ(limit(server_of(name + " 33554432" + of_one)), 33554432u) << name;
    ASSERT_TRUE(defaults.contains(name)) << name;
    // The default, typed, is the default.
    EXPECT_EQ(limit(server_of(name + " " + defaults[name])), limit(Server())) << name;
  }
  EXPECT_GT(server_of("--max-value 512M --max-memory 1G --max-client-memory 2G --max-held-memory 2G")
                .limits.max_message_bytes,
            std::size_t{512} << 20)
      << "a message holds the largest value";
}

const std::vector<std::string> kRefusedRuns = {
    "", "--bogus", "frobnicate x", "run --bogus p", "run -n 2 -y", "run", "run --", "run -n 2", "run -n",
    "run -n 2 -n 3 p", "run -n ./train", "run -np 2 ./train", "run -n auto p", "run --nproc-per-node= p",
    "run --nproc-per-node 0 p", "run --nproc-per-node -1 p", "run --nproc-per-node x p", "run --nproc-per-node 4x p",
    "run --nproc-per-node 1e3 p", "run --nproc-per-node 1025 p", "run --nproc-per-node 99999999999999999999 p",
    "run --nproc-per-node ' 2' p", "run -n 0 p", "run -n -1 p", "run -n x p", "run -n 1025 p",
    // "did you mean"
    "rnu p", "isnpect", "snap", "run --log-dri=x p", "run --max_restart 2 p", "run --np 2 p", "run --quite-another p",
    "run -y p", "run --backend scm p", "top --onec", "top one two", "store serve --max-client 2",
    // Values
    "LOCKSTEP_BACKEND=gpu run p", "LOCKSTEP_BACKEND=gpu run -H a p", "run --backend gpu p", "run --tee 3 p",
    "run --log-dir=d --tee 4 p", "run --log-dir=d --tee 0:3 p", "run --log-dir=d --tee=12 p", "run --ranks=x p",
    "run --ranks=3-1 p", "run --ranks=1, p", "run --ranks=-1 p", "run --bind socket p", "run --bind hwthread p",
    "run --bind cores p", "run --metrics-port x p", "run --metrics-port 65536 p", "run --metrics-port -1 p",
    "run --metrics-port host p", "run --metrics-port host:port p", "run --grace -1 p", "run --grace x p",
    "run --grace 1s p", "run --grace nan p", "run --grace inf p", "run --grace 86401 p", "run --grace",
    "run --timeout 0 p", "run --timeout -3 p", "run --timeout x p", "run --timeout 1.5 p", "run --master-port -1 p",
    "run --master-port 65536 p", "run --master-port x p", "run --liveness no p", "run --liveness 0 p",
    "run --liveness OFF p", "run --liveness 1.9 p", "run --devices 0,x p", "run --hang-timeout 1 p",
    "run --stop-timeout 0 p", "run --requeue-exit-code 256 p", "run --max-restarts=x p", "run --max-restarts=-1 p",
    "run --max-restarts=1000001 p", "run --max-restarts=1.5 p"};
const std::vector<std::string> kRefusedHosts = {
    // -H, --hostfile, and what belongs to them
    "run -H a:0 p", "run -H a,-b p", "run -H a --hostfile f p", "run -H a --nnodes=1 p", "run -H a --node-rank=0 p",
    "run -x A p", "run --rsh ssh p", "run -H a -x =1 p",
    // --nnodes, --node-rank
    "run --nnodes 0 p", "run --nnodes x p", "run --nnodes 4097 p", "run --nnodes 3:2 p", "run --nnodes 2: p",
    "run --nnodes :2 p", "run --nnodes -1 p", "run --nnodes=2:4 --rdzv-endpoint=h --rdzv-wait=x p",
    "run --nnodes=2 --rdzv-endpoint=h --rdzv-wait=5 p", "run --node-rank=1 p", "run --nnodes=3 --node-rank=3 p",
    // Where they meet
    "run --nnodes=2 p", "run --nnodes=2 --rdzv-endpoint=:29400 p", "run --nnodes=2 --rdzv-endpoint=h:x p",
    "run --nnodes=2 --rdzv-endpoint=h:0 p", "run --nnodes=2 --rdzv-endpoint=h -n 4 p", "run --rdzv-timeout 0 p",
    "run --rdzv-timeout x p", "run --rdzv-timeout -1 p", "run --rdzv-backend=etcd p",
    "run --rdzv-conf=read_timeout=3 p",
    // Torchrun's variables
    "PET_NNODES=x run p", "PET_NNODES=2 run p", "PET_NODE_RANK=7 run p", "PET_NNODES=1 run --nnodes x p",
    "PET_NNODES=1 run --grace x p"};
const std::vector<std::string> kRefusedCommands = {
    // Of runs
    "report", "report a ''", "report 1 2 3 4 5 6 7", "stop", "stop a b", "stop ''", "help rnu", "logs r -n -3",
    "logs r -n x", "ps r", "top --interval 0", "trace --steps 0",
    // Of hosts
    "doctor --bogus", "doctor ./train", "doctor --probe-timeout 0", "doctor -- x", "doctor -H a:0", "doctor --rsh x",
    "doctor --rdzv-endpoint x",
    // The store
    "store", "store bogus", "store serve --port 70000", "store serve --port http", "store serve --store-auth maybe",
    "store serve --store-auth=off --secret-file f", "store serve --max-clients 0", "store serve --max-memory lots",
    "store serve --max-memory 1K", "store serve --max-value 0", "store serve --max-value 512M",
    "store serve --max-client-memory 2G", "store serve --max-value 9999999T", "store serve --greeting-timeout 0",
    "store serve --bogus", "store serve extra",
    // lockstep replay
    "replay a b", "replay a b --", "replay a -- ./train", "replay a '' -- ./train", "replay -n 0 a b -- ./train"};

TEST(CommandLine, RefusesEachMistakeInOneLine) {
  // An empty value is no wish for the default.
  std::vector<std::string> empty;
  for (const char* const flag : {"--log-dir", "--tee", "--ranks", "--bind", "--grace", "--timeout", "--hang-timeout",
                                 "--liveness", "--master-addr", "--master-port", "--nnodes", "--nproc-per-node", "-n",
                                 "--trace", "--rdzv-id", "--hostfile", "--rsh", "--health-check"}) {
    empty.push_back(fmt::format("run {} '' p", flag));
  }
  for (const char* const flag : {"--host", "--port", "--secret-file", "--store-auth", "--max-keys"}) {
    empty.push_back(fmt::format("store serve {} ''", flag));
  }
  empty.push_back("doctor --probe-timeout ''");
  std::set<std::string> named;
  for (const auto& [what, lines] : std::initializer_list<std::pair<const char*, const std::vector<std::string>&>>{
           {"runs", kRefusedRuns},
           {"several hosts", kRefusedHosts},
           {"other commands", kRefusedCommands},
           {"empty", empty}}) {
    std::string page;
    for (const std::string& line : lines) {
      const std::string said = refused(line);
      page += "$ " + line + "\n" + said;
      named.insert(said);
    }
    expect_message("launcher", what, page);
  }
  // A new flag comes with its wrong value. "  --grace SECONDS", "  -H,--host HOST[:SLOTS],...", "  -t,--tee [1|2|3]"; a
  // flag without a value stands alone.
  const std::regex with_value("\n  (?:-t,)?(-[-a-zA-Z]+)(?:,--[a-z-]+)? \\[?[A-Za-z0-9]");
  const std::string help = answered("run --help-all").out;
  int flags = 0;
  for (auto it = std::sregex_iterator(help.begin(), help.end(), with_value); it != std::sregex_iterator();
       ++it, ++flags) {
    const std::string wrong = "lockstep run: " + (*it)[1].str();
    EXPECT_TRUE(std::ranges::any_of(named, [&](const std::string& said) { return said.starts_with(wrong); })) << wrong;
  }
  EXPECT_GT(flags, 30);
}

const char* const kCommands[] = {"run",    "ps",     "top",       "inspect",     "trace",  "logs",       "stop",
                                 "report", "doctor", "snapshots", "bisect-step", "replay", "store serve"};

std::string help_of(const std::string& line) {
  const auto answer = answered(line);
  EXPECT_EQ(answer.exit_code, 0);
  EXPECT_EQ(answer.err, "");
  return answer.out;
}

TEST(Help, EachPageFitsEightyColumnsAndTellsOfItsCommandAlone) {
  std::map<std::string, std::string> pages = {{"lockstep", help_of("--help")}, {"run, all", help_of("run --help-all")}};
  for (const std::string command : kCommands) {
    const std::string name = "lockstep " + command;
    pages[name] = help_of(command + " --help");
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
  const std::string brief = help_of("run --help");
  EXPECT_LE(std::count(brief.begin(), brief.end(), '\n'), 40);
  EXPECT_EQ(help_of("run -h"), brief);
  EXPECT_EQ(help_of("run -n 2 --help"), brief);
  const std::string all = help_of("run --help-all");
  EXPECT_EQ(help_of("run --help all"), all);
  EXPECT_EQ(all.find("_per_node"), std::string::npos) << "one spelling is enough";
  for (const char* heading :
       {"Ranks", "Output", "Failures", "Multi-host jobs, from one host", "Multi-host jobs, this command on each host",
        "Programs with their own store", "Exit codes"}) {
    EXPECT_NE(all.find(std::string("\n") + heading + ":\n"), std::string::npos) << heading;
  }
  const std::regex flag("(?:^|[ \n])(--?[a-zA-Z][-a-z]*)");
  for (auto it = std::sregex_iterator(brief.begin(), brief.end(), flag); it != std::sregex_iterator(); ++it) {
    const std::string name = (*it)[1];
    if (name == "--epochs") continue;  // the example program's
    EXPECT_TRUE(std::regex_search(all, std::regex("\n  (-\\w,)?" + name + "[ ,\n]"))) << name;
  }
}

TEST(Help, IsWrappedAtBlanks) {
  EXPECT_EQ(wrapped("a word, and another", 7), "a word,\nand\nanother");
  EXPECT_EQ(wrapped("longer-than-that is", 6), "longer-than-that\nis");
  EXPECT_EQ(wrapped("", 6), "");
}

}  // namespace
}  // namespace lockstep::launcher::command_line_test
