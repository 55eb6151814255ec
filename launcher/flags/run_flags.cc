// SPDX-License-Identifier: Apache-2.0
#include "launcher/flags/run_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "launcher/flags/flag_values.h"
#include "lockstep/base/error.h"
#include "runtime/base/text.h"
#include "runtime/job/exit_code.h"
#include "runtime/membership/membership_table.h"
#include "runtime/net/address.h"

namespace lockstep::launcher {
namespace {

int parse_ranks(std::string_view flag, const std::string& text) {
  if (const auto ranks = parse_count(text, kMaxRanks)) return static_cast<int>(*ranks);
  if (flag == "-n" && text == "p") refuse("-np is a flag of mpirun; here it is -n: give -n RANKS instead");
  refuse("{} {}: give a number of ranks from 1 to {}{}", flag, text, kMaxRanks,
         flag == "-n" ? "" : ", or auto, cpu or gpu");
}

// Parses "3", or "2:4".
std::optional<std::pair<int, int>> parse_nodes(const std::string& text) {
  const auto colon = text.find(':');
  const auto least = parse_count(text.substr(0, colon), kMaxNodes);
  const auto most = colon == text.npos ? least : parse_count(text.substr(colon + 1), kMaxNodes);
  if (!least || !most || *most < *least) return std::nullopt;
  return std::pair(static_cast<int>(*least), static_cast<int>(*most));
}

// Parses "9400", on loopback, or "0.0.0.0:9400".
net::HostPort parse_metrics_address(const std::string& text) {
  if (parse_int(text)) {
    if (const auto port = parse_port(text)) return {"127.0.0.1", *port};
    refuse("--metrics-port {}: give a port, or ADDRESS:PORT; ports are 0 to 65535", text);
  }
  try {
    return net::parse_host_port(text);
  } catch (const InvalidArgument& error) {
    refuse("--metrics-port {}: give a port, or ADDRESS:PORT to be reached from elsewhere ({})", text, error.what());
  }
}

void check_backend(std::string_view flag, const std::string& text) {
  constexpr std::array<std::string_view, 7> kBackends = {"auto", "shm", "tcp", "gloo", "mpi", "nccl", "single"};
  if (std::ranges::find(kBackends, text) != kBackends.end()) return;
  refuse("{} {}: give auto, shm, tcp (or gloo), mpi, nccl or single{}", flag, text, meant(text, kBackends));
}

bool is_hang_timeout(const std::string& text) {
  const auto seconds = parse_seconds(text);
  return text == "off" || (seconds && *seconds >= membership::kLeastHang);
}

bool is_liveness(const std::string& text) {
  const auto seconds = parse_seconds(text);
  return text == "on" || text == "off" || (seconds && *seconds >= std::chrono::seconds(2));
}

// Reads "join_timeout=600,timeout=900,last_call_timeout=30": --rdzv-timeout is join_timeout, else timeout. Flags that
// are given themselves count.
void read_conf(const std::string& text, const FlagTable& flags, RunOptions& options) {
  std::optional<std::chrono::milliseconds> timeout;
  for (const std::string_view item : split(text, ',')) {
    const auto equals = item.find('=');
    const auto name = item.substr(0, equals);
    const auto seconds = equals == item.npos ? std::nullopt : parse_seconds(std::string(item.substr(equals + 1)));
    const bool is_wait = name == "last_call_timeout";
    if ((name != "join_timeout" && name != "timeout" && !is_wait) || !seconds || (seconds->count() == 0 && !is_wait)) {
      refuse(
          "--rdzv-conf {}: lockstep has no setting '{}'; give join_timeout=SECONDS, which means --rdzv-timeout, or "
          "last_call_timeout=SECONDS, which means --rdzv-wait",
          text, item);
    }
    if (is_wait) {
      if (flags.text("--rdzv-wait").empty()) options.rdzv_wait = *seconds;
    } else if (!timeout || name == "join_timeout") {
      timeout = seconds;
    }
  }
  if (timeout && flags.text("--rdzv-timeout").empty()) options.rdzv_timeout = *timeout;
}

// Throws if `text` is wrong; else sets a variable of the ranks to it.
template <typename IsValid>
ReadFlag for_ranks(RunOptions& options, const char* variable, IsValid is_valid, std::string wanted) {
  return [&options, variable, is_valid, wanted = std::move(wanted)](std::string_view flag, const std::string& text) {
    if (!is_valid(text)) refuse("{} {}: {}", flag, text, wanted);
    options.rank_variables[variable] = text;
  };
}

void add_rows(FlagTable& flags, RunOptions& options) {
  flags.section("Ranks");
  flags.add("-n", "N", "Ranks of the job, on one host: the same as --nproc-per-node N",
            [&](auto flag, auto& text) { options.ranks = parse_ranks(flag, text); },
            {.brief = {"-n N", "ranks; default one per GPU, or per core without GPUs"}});
  flags.add(
      "--nproc-per-node", "N|auto|cpu|gpu",
      "Ranks on this host: a number; gpu: one per GPU; cpu: one per core that this process may use; auto (default): "
      "gpu if there is one, else cpu",
      [&](auto flag, auto& text) {
        if (text != "auto" && text != "cpu" && text != "gpu") parse_ranks(flag, text);
        options.nproc_per_node = text;
      },
      {.variable = "PET_NPROC_PER_NODE"});
  flags.add(
      "--devices", "0,3",
      "GPUs of the ranks, by index or UUID: local rank i gets the i-th. Sets CUDA_VISIBLE_DEVICES; one rank for each "
      "unless a number is given",
      read_as(options.devices, parse_devices,
              "give GPUs by index, such as 0,3, or by UUID, as nvidia-smi -L shows them"),
      {.brief = {"--devices 0,3", "use these GPUs, one rank each"}});
  flags.add("--oversubscribe-gpu", "", "Let ranks share GPUs, for tests on a small machine: correct, but slow",
            &options.oversubscribe_gpu);
  flags.add("--bind", "core|numa|none", "Bind each rank to its own cores, or to a NUMA node. Default none",
            read_as(options.binding, parse_binding, "give core, numa or none"),
            {.brief = {"--bind core|numa", "give each rank its own cores or NUMA node"}});
  flags.add("--backend", "NAME",
            "LOCKSTEP_BACKEND of the ranks, for programs that ask for none: shm, tcp, mpi or nccl. Default: "
            "LOCKSTEP_BACKEND, else auto",
            [&](auto flag, auto& text) {
              check_backend(flag, text);
              options.rank_variables["LOCKSTEP_BACKEND"] = text;
            },
            {.variable = "LOCKSTEP_BACKEND",
             .brief = {"--backend NAME", "shm, tcp, mpi or nccl, if the program asks for none"}});
  flags.section("Output");
  flags.add("--log-dir", "DIR",
            "Write each rank's output to DIR/start1/rankN.out and .err instead of here, all of it by time to "
            "DIR/job.log, and how the job ended to DIR/verdict.json. Replaces files of an earlier run",
            &options.log_dir, {.brief = {"--log-dir DIR", "write output and traces to DIR, for lockstep report"}});
  flags.add("-t,--tee", "0|1|2|3",
            "With --log-dir: also show here what goes to the files, 1 stdout, 2 stderr, 3 or no value both",
            read_as(options.tee, Tee::parse,
                    "give 1 for stdout, 2 for stderr, 3 for both or 0 for neither; --ranks chooses ranks"),
            {.value = "3", .brief = {"--tee", "with --log-dir: show the output here too"}});
  flags.add("--ranks", "0,3-5", "Show here only what these ranks write; the files have all ranks",
            read_as(options.shown_ranks, RankSet::parse, "give ranks and ranges of them, such as 0,3 or 0-2,7"),
            {.brief = {"--ranks 0,3-5", "show only these ranks"}});
  flags.add("--trace", "FILE",
            "Write a timeline of all ranks to FILE, for Perfetto or chrome://tracing: steps, buckets, waits "
            "(docs/OBSERVE.md)",
            &options.trace, {.brief = {"--trace FILE", "write a timeline of all ranks to FILE, for Perfetto"}});
  flags.add("--metrics-port", "PORT|ADDRESS:PORT",
            "Answer Prometheus there, GET /metrics, on loopback unless an address is given; 0: a free port, which is "
            "logged. In multi-host jobs node rank 0 answers",
            [&](auto, auto& text) { options.metrics = parse_metrics_address(text); },
            {.brief = {"--metrics-port PORT", "answer Prometheus at this port"}});
  flags.section("Failures");
  flags.add(
      "--max-restarts", "K",
      "Restart the ranks after a failure, up to K times, as long as each start finishes a new step. Default 0",
      read_as(options.max_restarts, up_to(kMostRestarts, 0), fmt::format("give a number from 0 to {}", kMostRestarts)),
      {.variable = "PET_MAX_RESTARTS",
       .brief = {"--max-restarts K", "restart the ranks after a failure, up to K times"}});
  flags.add(
      "--timeout", "SECONDS",
      "LOCKSTEP_TIMEOUT of the ranks: limit of start-up and of each collective. Default: LOCKSTEP_TIMEOUT, else 300",
      for_ranks(options, "LOCKSTEP_TIMEOUT", up_to(30 * 86400), "give whole seconds, at least 1 and at most 30 days"),
      {.brief = {"--timeout SECONDS", "limit of start-up and of each collective; default 300"}});
  flags.add(
      "--hang-timeout", "SECONDS|off",
      "A rank that is behind the others, and starts no collective for so long, fails the job under its name; 2 or "
      "more. Default: LOCKSTEP_HANG_TIMEOUT, else off",
      for_ranks(options, "LOCKSTEP_HANG_TIMEOUT", is_hang_timeout,
                fmt::format("give seconds from {} to 86400, or off",
                            std::chrono::duration<double>(membership::kLeastHang).count())),
      {.brief = {"--hang-timeout SECONDS", "fail a rank that starts no collective for so long"}});
  flags.add("--liveness", "on|off|SECONDS",
            "When a silent rank (stopped, in a debugger) is lost: on: after 2 s; SECONDS: after so long; off: never. "
            "Default: LOCKSTEP_LIVENESS, else on",
            for_ranks(options, "LOCKSTEP_LIVENESS", is_liveness, "give on, off, or seconds from 2 to 86400"),
            {.brief = {"--liveness off", "never treat a silent rank as lost, as in a debugger"}});
  flags.add("--grace", "SECONDS",
            "After a failure: seconds between SIGTERM and SIGKILL for the other ranks. Default 0.7",
            read_as(options.grace, parse_seconds, "give seconds from 0 to 86400, such as 0.7"));
  flags.add("--stop-timeout", "SECONDS",
            "LOCKSTEP_STOP_TIMEOUT of the ranks: how long after a signal a rank may take to end a step. Default: "
            "LOCKSTEP_STOP_TIMEOUT, else 25",
            for_ranks(options, "LOCKSTEP_STOP_TIMEOUT", parse_seconds_above_0, kSecondsAbove0));
  flags.add(
      "--requeue-exit-code", "N",
      "Exit code of ranks that stopped for a signal, and of this command then. Default: LOCKSTEP_REQUEUE_EXIT_CODE, "
      "else 75",
      for_ranks(options, "LOCKSTEP_REQUEUE_EXIT_CODE", up_to(kMostRequeueCode),
                fmt::format("give a code from 1 to {}", kMostRequeueCode)));
  flags.add("--health-check", "COMMAND",
            "Shell command, run before each start: ranks start on this host only if it exits with 0",
            &options.health_check);
  flags.section("Multi-host jobs, from one host");
  flags.add("-H,--host", "HOST[:SLOTS],...",
            "Start a launcher on each of these hosts through a remote shell, with SLOTS ranks each, else as "
            "--nproc-per-node says. -n takes the first N slots",
            [&](auto, auto& text) { options.hosts = parse_hosts(text); },
            {.brief = {"-H HOST:SLOTS,...", "start ranks on these hosts, through ssh"}});
  flags.add("--hostfile", "FILE", "The same from a file in Open MPI's format: lines 'HOST slots=N', comments after #",
            &options.hostfile, {.brief = {"--hostfile FILE", "the same, from a file with lines 'HOST slots=N'"}});
  flags.add("--rsh", "COMMAND", "The remote shell, which gets HOST and a command. Default 'ssh -o BatchMode=yes'",
            &options.rsh);
  flags.add("-x", "NAME[=VALUE]",
            "A variable to copy to the hosts, with its value here or the one given; may be repeated",
            &options.exported);
  flags.section("Multi-host jobs, this command on each host");
  flags.add("--nnodes", "N|LEAST:MOST", "Hosts of the job. With LEAST:MOST hosts may join and leave. Default 1",
            [&](auto flag, auto& text) {
              std::tie(options.least_nodes, options.nodes) =
                  required(parse_nodes(text), flag, text,
                           fmt::format("give a number of hosts from 1 to {}, or LEAST:MOST", kMaxNodes));
            },
            {.variable = "PET_NNODES", .brief = {"--nnodes N", "this command runs on each of N hosts: docs/RUN.md"}});
  flags.add("--node-rank", "R",
            "This host's rank among them, from 0. Default: the job's store gives one, and the host with the endpoint's "
            "address is 0",
            [&](auto flag, auto& text) {  // read after --nnodes
              const int most = options.nodes - 1;
              options.node_rank =
                  static_cast<int>(required(parse_count(text, most, 0), flag, text,
                                            fmt::format("give a number from 0 to {}, one less than --nnodes", most)));
            },
            {.variable = "PET_NODE_RANK"});
  flags.add(
      "--rdzv-endpoint", "HOST[:PORT]",
      "Where node rank 0 serves the job's store: an address or name of that host. PORT defaults to 29400, and the "
      "flag to --master-addr:--master-port",
      ReadFlag(),
      {.variable = "PET_RDZV_ENDPOINT", .brief = {"--rdzv-endpoint HOST", "with --nnodes: the host of node rank 0"}});
  flags.add("--rdzv-id", "NAME", "A name of the job: launchers that give another are refused", &options.run_id,
            {.variable = "PET_RDZV_ID"});
  flags.add("--rdzv-timeout", "SECONDS", "How long to wait for all hosts. Default 300",
            read_seconds_above_0(options.rdzv_timeout));
  flags.add("--rdzv-wait", "SECONDS",
            "With --nnodes LEAST:MOST: how long the first start waits for more than LEAST hosts. Default 30",
            read_as(options.rdzv_wait, parse_seconds, "give seconds from 0 to 86400"));
  flags.add("--rdzv-conf", "join_timeout=SECONDS",
            "torchrun's spelling of --rdzv-timeout (also timeout=SECONDS), and with last_call_timeout=SECONDS of "
            "--rdzv-wait",
            [&](auto, auto& text) { read_conf(text, flags, options); }, {.variable = "PET_RDZV_CONF"});
  flags.add("--rdzv-backend", "static|c10d", "Accepted for torchrun; no effect",
            [](auto flag, auto& text) {
              if (text == "static" || text == "c10d") return;
              refuse("{} {}: give static or c10d, which mean the same here: node rank 0 serves the job's store", flag,
                     text);
            },
            {.variable = "PET_RDZV_BACKEND"});
  flags.add("--standalone", "", "Accepted for torchrun; no effect", &options.standalone);
  flags.section("Programs with their own store");
  flags.add("--torch-store", "",
            "Serve torch's protocol at MASTER_ADDR:MASTER_PORT, for programs that want the launcher's store. It has no "
            "secret",
            &options.torch_store);
  flags.add(
      "--master-addr", "ADDRESS",
      "MASTER_ADDR of the ranks. Default 127.0.0.1; in multi-host jobs that of --rdzv-endpoint",
      [&](auto flag, auto& text) { options.master_addr = parsed_as(flag, [&] { return net::parse_host(text); }); },
      {.variable = "PET_MASTER_ADDR"});
  flags.add("--master-port", "PORT",
            "MASTER_PORT of the ranks; without --torch-store lockstep does not listen there. Default: a free one",
            read_as(options.master_port, parse_port, "give a port from 1 to 65535, or 0 for a free one"),
            {.variable = "PET_MASTER_PORT"});
}

void set_endpoint(const FlagTable& flags, RunOptions& options) {
  if (options.nodes == 1) return;
  if (options.ranks) {
    refuse(
        "-n {} can't be given with --nnodes {}, since each host says its own number of ranks: give --nproc-per-node "
        "instead",
        *options.ranks, options.nodes);
  }
  const bool has_address = !flags.text("--master-addr").empty();
  if (const std::string text = flags.text("--rdzv-endpoint"); !text.empty()) {
    options.endpoint = parsed_as("--rdzv-endpoint", [&] { return net::parse_host_port(text, kRendezvousPort); });
  } else if (has_address) {
    options.endpoint = {options.master_addr,
                        options.master_port == 0 ? kRendezvousPort : static_cast<std::uint16_t>(options.master_port)};
    options.master_port = 0;  // the job's store is there
  }
  if (options.endpoint.host.empty() || options.endpoint.port == 0) {
    refuse(
        "--nnodes {}: give --rdzv-endpoint HOST:PORT, the same on every host, with an address of node rank 0 and a "
        "port that is free on that host",
        options.nodes);
  }
  if (!has_address) options.master_addr = options.endpoint.host;
}

// Checks the flags against each other.
void check_together(const FlagTable& flags, RunOptions& options) {
  if (const std::string wait = flags.text("--rdzv-wait"); !wait.empty() && !options.hosts_may_change()) {
    refuse("--rdzv-wait {} is only for --nnodes LEAST:MOST; leave --rdzv-wait out here, where all hosts are waited for",
           wait);
  }
  check_hosts(flags, options);
  set_endpoint(flags, options);
  const std::string tee = flags.text("--tee");
  if ((options.tee.out || options.tee.err) && options.log_dir.empty()) {
    refuse(
        "--tee {} shows here what goes to the files of --log-dir, which is not given; give --log-dir DIR, or leave "
        "--tee out",
        tee);
  }
  if (!options.shown_ranks.is_all() && tee.empty()) options.tee = {.out = true, .err = true};
}

// Returns PROGRAM and its arguments: the words after the flags, and those from "--" on, which `app` did not get.
std::vector<std::string> program_of(const CLI::App& app, const std::vector<std::string>& arguments) {
  std::vector<std::string> words = app.remaining();
  auto mark = std::find(arguments.begin(), arguments.end(), "--");
  if (words.empty() && mark != arguments.end()) ++mark;  // a "--" after PROGRAM is the program's
  if (!words.empty() && words.front().size() > 1 && words.front().front() == '-') {
    refuse("unknown flag {}; see lockstep run --help all (give flags of the program after the program){}",
           words.front(), flag_meant(app, words.front()));
  }
  words.insert(words.end(), mark, arguments.end());
  return words;
}

}  // namespace

void check_hosts(const FlagTable& flags, RunOptions& options) {
  const bool has_list = !flags.text("-H").empty();
  if (!has_list && options.hostfile.empty()) {
    if (options.rsh.empty() && options.exported.empty()) return;
    refuse("--rsh and -x are for hosts that -H or --hostfile names; give -H or --hostfile, or leave --rsh and -x out");
  }
  if (has_list && !options.hostfile.empty())
    refuse("-H and --hostfile both name the hosts of the job; give only one of the two");
  if (!flags.text("--nnodes").empty() || !flags.text("--node-rank").empty()) {
    refuse("-H and --hostfile give the hosts their number and node ranks; leave out --nnodes and --node-rank");
  }
  for (const std::string& wish : options.exported) {
    if (wish.empty() || wish.front() == '=') refuse("-x {}: give NAME or NAME=VALUE", wish);
  }
  const std::string endpoint = flags.text("--rdzv-endpoint");
  if (!endpoint.empty()) options.endpoint = net::parse_host_port(endpoint, std::uint16_t{0});
}

std::function<Command()> add_run_flags(FlagTable& flags, const std::vector<std::string>& arguments,
                                       const Environment& environment) {
  const auto shared = std::make_shared<RunOptions>();
  flags.app().set_help_all_flag("--help-all", "Print this help; --help is shorter");
  flags.app().prefix_command();
  add_rows(flags, *shared);
  return [&, shared]() -> Command {
    RunOptions& options = *shared;
    options.arguments = arguments;
    options.command = program_of(flags.app(), arguments);
    // torchrun's variables describe a launcher on one of the hosts.
    const bool is_one_of_the_hosts = flags.text("-H").empty() && flags.text("--hostfile").empty();
    const bool has_ranks = !flags.text("-n").empty();
    flags.take_variables(environment, [&](std::string_view variable) {
      if (variable == "PET_NPROC_PER_NODE" && has_ranks) return false;
      return is_one_of_the_hosts || !variable.starts_with("PET_");
    });
    try {
      flags.read();
      check_together(flags, options);
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(error.what() + flags.source_of(error.what()));
    }
    // Last, because `-n ./train` has taken the program for a number.
    if (options.command.empty()) refuse("no program was given; use lockstep run [OPTIONS] [--] PROGRAM [ARGS...]");
    return options;
  };
}

}  // namespace lockstep::launcher
