// SPDX-License-Identifier: Apache-2.0
#include "launcher/flags/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <utility>

#include "launcher/base/exit_codes.h"
#include "launcher/flags/flag_values.h"
#include "launcher/flags/help_format.h"
#include "launcher/flags/help_text.h"
#include "launcher/flags/run_flags.h"
#include "launcher/flags/serve_flags.h"
#include "runtime/base/text.h"

namespace lockstep::launcher {
namespace {

// Returns the flag's accepted spellings: "--log-dir,--log_dir" for "--log-dir".
std::string spellings(std::string_view name) {
  std::string other(name);
  std::replace(other.begin() + 2, other.end(), '-', '_');
  return other == name ? other : fmt::format("{},{}", name, other);
}

// Returns the answer "lockstep run: TEXT".
Answer usage_error(std::string_view command, std::string_view text) {
  return {.exit_code = kExitUsage, .out = {}, .err = fmt::format("lockstep{}: {}\n", command, text)};
}

// Returns "; did you mean top?" for a word that resembles one of `names`; else an empty string.
std::string meant(std::string_view word, std::span<const std::string_view> names) {
  const auto found = nearest(word, names);
  return found ? fmt::format("; did you mean {}?", *found) : "";
}

constexpr std::array<std::string_view, 12> kCommands = {
    "run", "ps", "top", "inspect", "trace", "logs", "stop", "report", "doctor", "snapshots", "bisect-step", "store"};

std::string list_of_commands() {
  return fmt::format("there are {} serve; see lockstep --help", fmt::join(kCommands, ", "));
}

// Returns the same for a flag that `app` does not have, such as "--log_dri=x".
std::string flag_meant(const CLI::App& app, std::string_view flag) {
  std::string word(flag.substr(0, flag.find('=')));
  if (!word.starts_with("--")) return {};
  std::replace(word.begin(), word.end(), '_', '-');
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
  return meant(word, std::vector<std::string_view>(flags.begin(), flags.end()));
}

// An empty value is treated as an unset variable of a script, as in --log-dir "$LOGS", not as a wish for the default.
CLI::Option* text_flag(CLI::App& app, std::string_view name, std::string& value, const std::string& placeholder,
                       const std::string& help) {
  return app.add_option(name.starts_with("--") ? spellings(name) : std::string(name), value, help)
      ->option_text(placeholder)
      ->check([](const std::string& text) {
        return text.empty() ? "its value is empty; give one, or leave the flag out" : std::string();
      });
}

CLI::App& add_command(CLI::App& parent, const std::string& name, const std::string& about) {
  CLI::App& app = *parent.add_subcommand(name, about);
  app.footer(std::string(help_of(name).text));
  return app;
}

struct RunCommand {
  explicit RunCommand(CLI::App& parent) : app(add_command(parent, "run", "Start the ranks of a job, and watch them")) {
    app.set_help_all_flag("--help-all", "Print this help; --help is shorter");
    app.prefix_command();
    const auto group = [this](const char* name) { app.option_defaults()->group(name); };
    group("Ranks");
    text_flag(app, "-n", raw.ranks, "N", "Ranks of the job, on one host: the same as --nproc-per-node N");
    text_flag(app, "--nproc-per-node", raw.nproc_per_node, "N|auto|cpu|gpu",
              "Ranks on this host: a number; gpu: one per GPU; cpu: one per core that this process may use; auto "
              "(default): gpu if there is one, else cpu");
    app.add_option("--devices", raw.devices,
                   "GPUs of the ranks, by index or UUID: local rank i gets the i-th. Sets CUDA_VISIBLE_DEVICES; one "
                   "rank for each unless a number is given")
        ->option_text("0,3");
    app.add_flag(spellings("--oversubscribe-gpu"), options.oversubscribe_gpu,
                 "Let ranks share GPUs, for tests on a small machine: correct, but slow");
    text_flag(app, "--bind", raw.bind, "core|numa|none",
              "Bind each rank to cores of its own, or to a NUMA node. Default none");
    text_flag(app, "--backend", raw.backend, "NAME",
              "LOCKSTEP_BACKEND of the ranks, for programs that ask for none: shm, tcp, mpi or nccl. Default: "
              "LOCKSTEP_BACKEND, else auto");
    group("Output");
    text_flag(app, "--log-dir", options.log_dir, "DIR",
              "Write each rank's output to DIR/generation0/rankN.out and .err instead of here, all of it by time to "
              "DIR/job.log, and how the job ended to DIR/verdict.json. Replaces files of an earlier run");
    text_flag(app, "-t,--tee", raw.tee, "0|1|2|3",
              "With --log-dir: also show here what goes to the files, 1 stdout, 2 stderr, 3 or no value both");
    text_flag(app, "--ranks", raw.shown_ranks, "0,3-5",
              "Show here only what these ranks write; the files have all ranks");
    text_flag(app, "--trace", options.trace, "FILE",
              "Write a timeline of all ranks to FILE, for Perfetto or chrome://tracing: steps, buckets, waits "
              "(docs/OBSERVE.md)");
    text_flag(app, "--metrics-port", raw.metrics_port, "PORT|ADDRESS:PORT",
              "Answer Prometheus there, GET /metrics, on loopback unless an address is given; 0: a free port, which is "
              "logged. In multi-host jobs node rank 0 answers");
    group("Failures");
    text_flag(app, "--max-restarts", raw.max_restarts, "K",
              "Restart the ranks after a failure, up to K times, as long as each start finishes a new step. Default 0");
    text_flag(app, "--timeout", raw.timeout, "SECONDS",
              "LOCKSTEP_TIMEOUT of the ranks: limit of start-up and of each collective. Default: LOCKSTEP_TIMEOUT, "
              "else 300");
    text_flag(app, "--hang-timeout", raw.hang_timeout, "SECONDS|off",
              "A rank that is behind the others, and starts no collective for so long, fails the job under its name; 2 "
              "or more. Default: LOCKSTEP_HANG_TIMEOUT, else off");
    text_flag(app, "--liveness", raw.liveness, "on|off|SECONDS",
              "When a silent rank (stopped, in a debugger) is lost: on: after 2 s; SECONDS: after so long; off: never. "
              "Default: LOCKSTEP_LIVENESS, else on");
    text_flag(app, "--grace", raw.grace, "SECONDS",
              "After a failure: seconds between SIGTERM and SIGKILL for the other ranks. Default 0.7");
    text_flag(app, "--stop-timeout", raw.stop_timeout, "SECONDS",
              "LOCKSTEP_STOP_TIMEOUT of the ranks: how long after a signal a rank may take to end a step. Default: "
              "LOCKSTEP_STOP_TIMEOUT, else 25");
    text_flag(app, "--requeue-exit-code", raw.requeue_exit_code, "N",
              "Exit code of ranks that stopped for a signal, and of this command then. Default: "
              "LOCKSTEP_REQUEUE_EXIT_CODE, else 75");
    text_flag(app, "--health-check", options.health_check, "COMMAND",
              "Shell command, run before each start: ranks start on this host only if it exits with 0");
    group("Multi-host jobs, from one host");
    text_flag(app, "-H,--host", raw.hosts, "HOST[:SLOTS],...",
              "Start a launcher on each of these hosts through a remote shell, with SLOTS ranks each, else as "
              "--nproc-per-node says. -n takes the first N slots");
    text_flag(app, "--hostfile", raw.hostfile, "FILE",
              "The same from a file in Open MPI's format: lines 'HOST slots=N', comments after #");
    text_flag(app, "--rsh", options.rsh, "COMMAND",
              "The remote shell, which gets HOST and a command. Default 'ssh -o BatchMode=yes'");
    app.add_option("-x", options.exported,
                   "A variable to copy to the hosts, with its value here or the one given; may be repeated")
        ->option_text("NAME[=VALUE]")
        ->allow_extra_args(false);
    group("Multi-host jobs, this command on each host");
    text_flag(app, "--nnodes", raw.nnodes, "N|LEAST:MOST",
              "Hosts of the job. With LEAST:MOST hosts may join and leave. Default 1");
    text_flag(app, "--node-rank", raw.node_rank, "R",
              "This host's rank among them, from 0. Default: the job's store gives one, and the host with the "
              "endpoint's address is 0");
    text_flag(app, "--rdzv-endpoint", raw.rdzv_endpoint, "HOST[:PORT]",
              "Where node rank 0 serves the job's store: an address or name of that host. PORT defaults to 29400, and "
              "the flag to --master-addr:--master-port");
    text_flag(app, "--rdzv-id", raw.rdzv_id, "NAME", "A name of the job: launchers that give another are refused");
    text_flag(app, "--rdzv-timeout", raw.rdzv_timeout, "SECONDS", "How long to wait for all hosts. Default 300");
    text_flag(app, "--rdzv-wait", raw.rdzv_wait, "SECONDS",
              "With --nnodes LEAST:MOST: how long the first start waits for more than LEAST hosts. Default 30");
    text_flag(app, "--rdzv-conf", raw.rdzv_conf, "join_timeout=SECONDS",
              "torchrun's spelling of --rdzv-timeout (also timeout=SECONDS), and with last_call_timeout=SECONDS of "
              "--rdzv-wait");
    text_flag(app, "--rdzv-backend", raw.rdzv_backend, "static|c10d", "Accepted for torchrun; no effect");
    app.add_flag("--standalone", standalone, "Accepted for torchrun; no effect");
    group("Programs with a store of their own");
    app.add_flag(spellings("--torch-store"), options.torch_store,
                 "Serve torch's protocol at MASTER_ADDR:MASTER_PORT, for programs that want the launcher's store. It "
                 "has no secret");
    text_flag(app, "--master-addr", raw.master_addr, "ADDRESS",
              "MASTER_ADDR of the ranks. Default 127.0.0.1; in multi-host jobs that of --rdzv-endpoint");
    text_flag(app, "--master-port", raw.master_port, "PORT",
              "MASTER_PORT of the ranks; without --torch-store lockstep does not listen there. Default: a free one");
  }

  // `own` are the words from "--" on.
  Command result(const std::vector<std::string>& own, const std::vector<std::string>& arguments,
                 const Environment& environment) {
    options.arguments = arguments;
    options.command = app.remaining();
    if (!options.command.empty()) {
      if (const auto& first = options.command.front(); first.size() > 1 && first.front() == '-') {
        refuse("unknown flag {}; see lockstep run --help all (flags of the program come after it){}", first,
               flag_meant(app, first));
      }
      options.command.insert(options.command.end(), own.begin(), own.end());  // a "--" behind PROGRAM is the program's
    } else if (!own.empty()) {
      options.command.assign(own.begin() + 1, own.end());
    }
    // First, because `-n ./train` has taken the program for a number.
    const auto variables = take_variables(environment, raw);
    try {
      interpret(raw, options);
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(error.what() + source_of(error.what(), variables));
    }
    if (options.command.empty())
      refuse("no program was given; the form is lockstep run [OPTIONS] [--] PROGRAM [ARGS...]");
    return std::move(options);
  }

  CLI::App& app;
  RunOptions options;
  RawRunFlags raw;
  bool standalone = false;
};

struct ServeCommand {
  explicit ServeCommand(CLI::App& parent)
      : app(add_command(parent, "serve", "Run the server of a store by itself, in the foreground")) {
    text_flag(app, "--host", raw.host, "ADDRESS",
              "Where to listen: an address or name of this host, 0.0.0.0 or :: for all. Default 127.0.0.1");
    text_flag(app, "--port", raw.port, "PORT", "Port to listen at. Default 0: a free one");
    text_flag(app, "--secret-file", options.secret_file, "FILE", "The secret: 64 hex digits, mode 0600");
    text_flag(app, "--store-auth", raw.auth, "on|off", "off: serve torch clients, and everyone else, without a secret");
    for (std::size_t i = 0; i < limit_flags().size(); ++i) {
      const LimitFlag& flag = limit_flags()[i];
      text_flag(app, flag.name, raw.limits[i], flag.unit == LimitFlag::Unit::bytes ? "SIZE" : "N",
                fmt::format("{}. Default {}", flag.help, flag.default_text()));
    }
    const std::chrono::duration<double> greeting = options.server.greeting_timeout;
    text_flag(app, "--greeting-timeout", raw.greeting_timeout, "SECONDS",
              fmt::format("How long a client may take to identify itself. Default {}", greeting.count()));
  }

  Command result() {
    interpret(raw, options);
    return std::move(options);
  }

  CLI::App& app;
  ServeOptions options;
  RawServeFlags raw;
};

struct DoctorCommand {
  explicit DoctorCommand(CLI::App& parent)
      : app(add_command(parent, "doctor", "Show what a rank would find here, and what is wrong")) {
    app.add_flag("--json", options.json, "One JSON object instead of lines");
    app.add_flag("--gpus", options.gpus,
                 "Try all GPUs together, and each pair of them, in a job of its own: sums, bandwidths, steps, a killed "
                 "rank. Takes a minute or two, in which they should be idle");
    text_flag(
        app, "--probe-timeout", probe_timeout, "SECONDS",
        "How long lockstep-probe may take to ask the drivers, and with -H each host to answer; --gpus takes twice "
        "as long at most. Default 60");
    text_flag(
        app, "-H,--host", raw.hosts, "HOST,...",
        "Check whether a job could start on these hosts: starts lockstep on each through a remote shell, and each "
        "connects to every other one");
    text_flag(app, "--hostfile", raw.hostfile, "FILE", "The same for hosts in a file, as for lockstep run");
    text_flag(app, "--rsh", options.run.rsh, "COMMAND",
              "With -H: the remote shell, which gets HOST and a command. Default 'ssh -o BatchMode=yes'");
    app.add_option("-x", options.run.exported, "With -H: a variable to copy to the hosts; may be repeated")
        ->option_text("NAME[=VALUE]")
        ->allow_extra_args(false);
    text_flag(app, "--rdzv-endpoint", raw.rdzv_endpoint, "HOST[:PORT]",
              "With -H: another address of the first host, for the others");
  }

  Command result() {
    interpret_hosts(raw, options.run);
    if (!raw.rdzv_endpoint.empty() && !options.run.starts_launchers()) {
      refuse("--rdzv-endpoint is for hosts that -H or --hostfile names; give one of these");
    }
    if (!probe_timeout.empty()) options.probe_timeout = seconds_above_0("--probe-timeout", probe_timeout);
    const std::pair<const char*, const std::string&> typed[] = {{"-H", raw.hosts},
                                                                {"--hostfile", raw.hostfile},
                                                                {"--rsh", options.run.rsh},
                                                                {"--rdzv-endpoint", raw.rdzv_endpoint}};
    for (const auto& [flag, value] : typed) {
      if (!value.empty()) options.host_flags.insert(options.host_flags.end(), {flag, value});
    }
    for (const std::string& variable : options.run.exported) {
      options.host_flags.insert(options.host_flags.end(), {"-x", variable});
    }
    return options;
  }

  CLI::App& app;
  DoctorOptions options;
  RawRunFlags raw;
  std::string probe_timeout;
};

struct SnapshotsCommand {
  explicit SnapshotsCommand(CLI::App& parent)
      : app(add_command(parent, "snapshots", "List, compare or export a job's snapshots")) {
    app.add_option("words", words)->group("");
    app.add_flag("--verify", options.verify, "Read every byte, and compare checksums");
    app.add_flag("--json", options.json, "One JSON object instead of lines");
  }

  Command result() {
    constexpr const char* kForm =
        "the form is lockstep snapshots DIR, lockstep snapshots diff A B, or lockstep snapshots export SNAPSHOT OUT";
    if (words.empty()) refuse("no folder was given; {}", kForm);
    const bool is_diff = words.size() > 1 && words.front() == "diff";
    const bool is_export = words.size() > 1 && words.front() == "export";
    if (words.size() != (is_diff || is_export ? 3 : 1)) refuse("{}", kForm);
    if (is_export && (options.verify || options.json)) refuse("export takes no flags; it reads every byte");
    if (std::ranges::count(words, "") > 0) refuse("a folder's name is empty; {}", kForm);
    options.folder = words[is_diff || is_export ? 1 : 0];
    if (is_diff) options.other = words[2];
    if (is_export) options.output = words[2];
    return options;
  }

  CLI::App& app;
  SnapshotsOptions options;
  std::vector<std::string> words;
};

struct ReportCommand {
  explicit ReportCommand(CLI::App& parent)
      : app(add_command(parent, "report", "Write a page and JSON about where a run's time went")) {
    app.add_option("words", options.folders)->group("");
    text_flag(app, "-o,--output", options.file, "FILE",
              "The page to write. Default DIR/report.html; with several folders compare.html");
  }

  Command result() {
    const auto& folders = options.folders;
    if (folders.empty() || folders.size() > 6 || std::ranges::count(folders, "") > 0) {
      refuse(
          "{} folders were given; the form is lockstep report DIR, of a run's --log-dir, or FILE.ranks of its --trace "
          "FILE; 2 to 6 are compared",
          folders.size());
    }
    return options;
  }

  CLI::App& app;
  ReportOptions options;
};

struct BisectStepCommand {
  explicit BisectStepCommand(CLI::App& parent)
      : app(add_command(parent, "bisect-step", "Name the first step and gradient that differ")) {
    app.add_option("words", options.folders)->group("");
  }

  Command result() {
    if (options.folders.empty()) {
      refuse("no folder was given; the form is lockstep bisect-step DIR..., of LOCKSTEP_STEP_DIGESTS");
    }
    if (std::ranges::count(options.folders, "") > 0) refuse("a folder's name is empty");
    return options;
  }

  CLI::App& app;
  BisectStepOptions options;
};

// The commands ps, top, inspect, trace, logs and stop.
struct RunsCommand {
  using What = RunsOptions::What;

  RunsCommand(CLI::App& parent, What what, const std::string& name, const std::string& about)
      : app(add_command(parent, name, about)) {
    options.what = what;
    app.footer(app.get_footer() + std::string(kExitCodesOfRuns));
    if (what == What::ps || what == What::top) app.add_flag("--json", options.json, "JSON instead of lines");
    if (what != What::ps) app.add_option("words", words)->group("");
    if (what == What::top) {
      app.add_flag("--once", options.once, "Print once and exit, as without a terminal");
      text_flag(app, "--interval", interval, "SECONDS", "Time between two updates. Default 1");
    }
    if (what == What::trace) {
      text_flag(app, "--steps", steps, "N", "Only the last N steps. Default: all that are kept");
      text_flag(app, "-o,--output", options.file, "FILE", "Where to write. Default RUN.trace.json, here");
    }
    if (what == What::logs) {
      app.add_flag("-f,--follow", options.follow, "Continue with new lines until the job ends");
      text_flag(app, "-n,--lines", lines, "N", "Begin with the last N lines. Default 50");
    }
  }

  Command result() {
    if (options.what == What::ps) return options;
    if (!(options.what != What::stop && words.empty()) && (words.size() != 1 || words.front().empty())) {
      refuse("give one run: lockstep {} RUN, a run id or how one begins, as lockstep ps shows them", app.get_name());
    }
    if (!words.empty()) options.run = words.front();
    if (!interval.empty()) options.interval = seconds_above_0("--interval", interval);
    read_flag("--lines", lines, options.lines, up_to(1'000'000, 0), "give a number from 0 to 1000000");
    read_flag("--steps", steps, options.steps, up_to(1'000'000), "give a number from 1 to 1000000");
    return options;
  }

  CLI::App& app;
  RunsOptions options;
  std::vector<std::string> words;
  std::string interval;
  std::string lines;
  std::string steps;
};

}  // namespace

Command parse_command_line(const std::vector<std::string>& arguments, const Environment& environment) {
  CLI::App app("lockstep: data-parallel training for people who train in C++", "lockstep");
  app.formatter(help_formatter());
  app.footer(std::string(help_of("lockstep").text));
  app.set_version_flag("--version", "lockstep " LOCKSTEP_VERSION);
  app.require_subcommand(0, 1);  // a folder may have the name of another command: lockstep report logs
  RunCommand run(app);
  CLI::App* const agent = app.add_subcommand("agent")->group("");  // for `lockstep run -H` alone
  DoctorCommand doctor(app);
  SnapshotsCommand snapshots(app);
  ReportCommand report(app);
  BisectStepCommand bisect_step(app);
  RunsCommand ps(app, RunsOptions::What::ps, "ps", "List this user's runs on this host");
  RunsCommand top(app, RunsOptions::What::top, "top", "Show what the ranks of a run do, once a second");
  RunsCommand inspect(app, RunsOptions::What::inspect, "inspect", "Show where each rank of a run is, with stacks");
  RunsCommand trace(app, RunsOptions::What::trace, "trace", "Write the timeline of a running job");
  RunsCommand logs(app, RunsOptions::What::logs, "logs", "Show the output of a run");
  RunsCommand stop(app, RunsOptions::What::stop, "stop", "Ask a run to stop");
  CLI::App& store = add_command(app, "store", "Run a rendezvous store: lockstep store serve");
  ServeCommand serve(store);

  if (!arguments.empty() && arguments.front() == "help") {  // help run all: run --help all
    std::vector<std::string> asked(arguments.begin() + 1, arguments.end());
    asked.insert(asked.end() - (!asked.empty() && asked.back() == "all" ? 1 : 0), "--help");
    return parse_command_line(asked, environment);
  }
  if (arguments == std::vector<std::string>{"version"}) return parse_command_line({"--version"}, environment);
  const bool is_run = !arguments.empty() && arguments.front() == "run";
  const auto is_first = [&](const CLI::App* known) { return known->get_name() == arguments.front(); };
  if (!arguments.empty() && !arguments.front().starts_with('-') && app.get_subcommands(is_first).empty()) {
    const std::string near = meant(arguments.front(), kCommands);
    return usage_error("", fmt::format("'{}' is not a command; {}{}", arguments.front(), list_of_commands(), near));
  }
  // CLI11 would look for flags behind "--" too, so it gets only the words before it.
  const auto mark = std::find(arguments.begin(), arguments.end(), "--");
  std::vector<std::string> own(arguments.begin(), mark);
  if (is_run) complete_optional_value(run.app, {"-t", "--tee"}, "3", own);
  std::vector<std::string> reversed(own.rbegin(), own.rend());
  const auto innermost = [&app] {
    const CLI::App* parsed = &app;
    while (!parsed->get_subcommands().empty()) parsed = parsed->get_subcommands().front();
    return parsed;
  };
  // The command's words, each behind a blank, such as " store serve".
  const auto command = [&innermost, &app] {
    std::string name;
    for (const CLI::App* it = innermost(); it != &app; it = it->get_parent()) name = " " + it->get_name() + name;
    return name;
  };
  try {
    app.parse(reversed);
    if (agent->parsed()) return AgentOptions{};
    if (run.app.parsed()) return run.result({mark, arguments.end()}, arguments, environment);
    if (mark != arguments.end()) return usage_error(command(), "'--' is for lockstep run only");
    if (doctor.app.parsed()) return doctor.result();
    if (snapshots.app.parsed()) return snapshots.result();
    if (report.app.parsed()) return report.result();
    if (bisect_step.app.parsed()) return bisect_step.result();
    for (RunsCommand* known : {&ps, &top, &inspect, &trace, &logs, &stop}) {
      if (known->app.parsed()) return known->result();
    }
    if (serve.app.parsed()) return serve.result();
    if (store.parsed())
      return usage_error(" store", "what about the store? There is: lockstep store serve, see its --help");
  } catch (const InvalidArgument& error) {
    return usage_error(command(), error.what());
  } catch (const CLI::CallForHelp&) {
    const bool is_short = run.app.parsed() && run.app.remaining() != std::vector<std::string>{"all"};
    return Answer{.exit_code = 0, .out = is_short ? short_run_help() : app.help(), .err = {}};
  } catch (const CLI::CallForAllHelp&) {
    return Answer{.exit_code = 0, .out = app.help(), .err = {}};
  } catch (const CLI::CallForVersion& version) {
    return Answer{.exit_code = 0, .out = fmt::format("{}\n", version.what()), .err = {}};
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string_view text = error.what();  // "-n: 1 required TEXT missing"
    return usage_error(command(), fmt::format("{}: give this flag once, with one value; see lockstep{} --help",
                                              text.substr(0, text.find(':')), command()));
  } catch (const CLI::ExtrasError&) {  // the exception's own text has the words in reverse order
    const auto extras = app.remaining(true);
    return usage_error(command(), fmt::format("not expected: {}; see lockstep{} --help{}", fmt::join(extras, " "),
                                              command(), flag_meant(*innermost(), extras.front())));
  } catch (const CLI::ParseError& error) {
    std::string text = error.what();
    std::replace(text.begin(), text.end(), '\n', ' ');
    return usage_error(command(), fmt::format("{}; see lockstep{} --help", text, command()));
  }
  return usage_error("", "no command was given; " + list_of_commands());
}

}  // namespace lockstep::launcher
