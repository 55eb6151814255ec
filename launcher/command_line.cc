// SPDX-License-Identifier: Apache-2.0
#include "launcher/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string_view>

#include "launcher/flag_values.h"
#include "launcher/help_text.h"
#include "launcher/optional_value.h"
#include "launcher/run/run_flags.h"
#include "launcher/serve/serve_flags.h"

namespace lockstep::launcher {
namespace {

// torchrun spells its long flags both ways, so both are accepted; help shows one.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    if (is_positional) return CLI::Formatter::make_option_name(option, is_positional);
    std::string text;
    for (const auto& name : option->get_snames()) text += (text.empty() ? "-" : ",-") + name;
    for (const auto& name : option->get_lnames()) {
      if (name.find('_') == std::string::npos) text += (text.empty() ? "--" : ",--") + name;
    }
    return text;
  }
  std::string make_usage(const CLI::App* app, std::string usage_name) const override {
    if (app->get_name() == "run") return "Usage: lockstep run [OPTIONS] [--] PROGRAM [ARGS...]\n";
    if (app->get_name() == "serve") return "Usage: lockstep store serve [OPTIONS]\n";
    if (app->get_name() == "report") return "Usage: lockstep report [OPTIONS] DIR [DIR...]\n";
    if (app->get_name() == "bisect-step") return "Usage: lockstep bisect-step DIR...\n";
    if (app->get_name() == "top" || app->get_name() == "inspect") {
      return fmt::format("Usage: lockstep {} [OPTIONS] [RUN]\n", app->get_name());
    }
    if (app->get_name() == "trace") return "Usage: lockstep trace [OPTIONS] [RUN|DIR]\n";
    if (app->get_name() == "logs" || app->get_name() == "stop") {
      return fmt::format("Usage: lockstep {} [OPTIONS] RUN\n", app->get_name());
    }
    if (app->get_name() == "snapshots") {
      return "Usage: lockstep snapshots [OPTIONS] DIR\n       lockstep snapshots [OPTIONS] diff A B\n";
    }
    return CLI::Formatter::make_usage(app, usage_name);
  }
};

// "--log-dir" to "--log-dir,--log_dir".
std::string spellings(std::string_view name) {
  std::string other(name);
  std::replace(other.begin() + 2, other.end(), '-', '_');
  return other == name ? other : fmt::format("{},{}", name, other);
}

// "lockstep run: TEXT".
Answer usage_error(std::string_view command, std::string_view text) {
  return {.exit_code = kExitUsage, .out = {}, .err = fmt::format("lockstep{}: {}\n", command, text)};
}

// An empty value is a variable of some script that is not set, as in --log-dir "$LOGS", not a wish for the default.
CLI::Option* text_flag(CLI::App& app, std::string_view name, std::string& value, const std::string& placeholder,
                       const std::string& help) {
  return app.add_option(name.starts_with("--") ? spellings(name) : std::string(name), value, help)
      ->option_text(placeholder)
      ->check([](const std::string& text) {
        return text.empty() ? "its value is empty; give one, or leave the flag out" : std::string();
      });
}

struct RunCommand {
  explicit RunCommand(CLI::App& parent)
      : app(*parent.add_subcommand("run", "Start the ranks of a job, on this host or on several, and watch them")) {
    app.footer(run_help());
    app.prefix_command();
    text_flag(
        app, "--nproc-per-node", raw.nproc_per_node, "N|auto|cpu|gpu",
        "Ranks on this host: a number; gpu: one per GPU; cpu: one per core this\nprocess may use; auto (default): "
        "gpu if there is one, else cpu");
    text_flag(app, "-n", raw.ranks, "N", "Ranks in all, of a job on one host: the same as --nproc-per-node N");
    app.add_option("--devices", raw.devices,
                   "GPUs of the ranks, by index or UUID: local rank i takes the i-th. Sets\nCUDA_VISIBLE_DEVICES; one "
                   "rank for each unless a number is given")
        ->option_text("0,3");
    app.add_flag(spellings("--oversubscribe-gpu"), options.oversubscribe_gpu,
                 "Let ranks share GPUs, for tests on a small machine: right, but slow");
    text_flag(
        app, "--log-dir", options.log_dir, "DIR",
        "Write each rank's output to DIR/generation0/rankN.out and .err instead of\nhere with a prefix, all of it by "
        "time to DIR/job.log, and how the job ended to\nDIR/verdict.json, replacing what is there");
    text_flag(app, "-t,--tee", raw.tee, "0|1|2|3",
              "With --log-dir: show here too what goes to the files, 1 stdout, 2 stderr,\n3 or no value both");
    text_flag(app, "--ranks", raw.shown_ranks, "0,3-5",
              "Show here what these ranks write, and of no others; files have all");
    text_flag(app, "--trace", options.trace, "FILE",
              "Write what the ranks did when to FILE, for Perfetto or chrome://tracing:\nsteps, buckets, waits. "
              "docs/OBSERVE.md");
    text_flag(
        app, "--metrics-port", raw.metrics_port, "PORT|ADDRESS:PORT",
        "Answer Prometheus there, GET /metrics, on loopback unless an address is\ngiven; 0: a free port, which is "
        "said. Of several hosts node rank 0 does");
    text_flag(app, "--bind", raw.bind, "core|numa|none",
              "Bind the ranks of this host to cores of their own, or to its NUMA nodes.\nDefault none");
    text_flag(app, "--grace", raw.grace, "SECONDS",
              "When a rank fails: seconds between SIGTERM and SIGKILL for the others.\nDefault 0.7");
    text_flag(app, "--backend", raw.backend, "NAME",
              "LOCKSTEP_BACKEND of the ranks, for programs that ask for none: shm, tcp,\nmpi or nccl. Default: "
              "LOCKSTEP_BACKEND, else auto");
    text_flag(app, "--timeout", raw.timeout, "SECONDS",
              "LOCKSTEP_TIMEOUT of the ranks: limit of start-up and of each\ncollective. Default: LOCKSTEP_TIMEOUT, "
              "else 300");
    text_flag(app, "--liveness", raw.liveness, "on|off|SECONDS",
              "off: a rank that is silent (stopped, in a debugger) is never taken\nfor lost; on: after 2 s. Default: "
              "LOCKSTEP_LIVENESS, else on");
    text_flag(
        app, "--hang-timeout", raw.hang_timeout, "SECONDS|off",
        "A rank that has started fewer collectives than another, and starts none\nfor so long, fails the job under "
        "its name; 2 or more. Default:\nLOCKSTEP_HANG_TIMEOUT, else off");
    text_flag(app, "--stop-timeout", raw.stop_timeout, "SECONDS",
              "LOCKSTEP_STOP_TIMEOUT of the ranks: how long after a signal a rank may\ntake to the end of a step. "
              "Default: LOCKSTEP_STOP_TIMEOUT, else 25");
    text_flag(app, "--requeue-exit-code", raw.requeue_exit_code, "N",
              "What ranks that have stopped for a signal, and this command then, exit\nwith. Default: "
              "LOCKSTEP_REQUEUE_EXIT_CODE, else 75");
    app.add_flag(
        spellings("--torch-store"), options.torch_store,
        "Serve torch's protocol at MASTER_ADDR:MASTER_PORT, for programs that want\nthe launcher's store. It has "
        "no secret");
    text_flag(app, "--master-addr", raw.master_addr, "ADDRESS",
              "MASTER_ADDR of the ranks, for programs that host their own store there.\nDefault 127.0.0.1; on several "
              "hosts that of --rdzv-endpoint");
    text_flag(
        app, "--master-port", raw.master_port, "PORT",
        "MASTER_PORT of the ranks; nothing of lockstep listens there without\n--torch-store. Default: a free one");
    text_flag(app, "--nnodes", raw.nnodes, "N|LEAST:MOST",
              "Hosts of the job: this command runs on each of them. With LEAST:MOST they may\ncome and go. Default 1");
    text_flag(app, "--node-rank", raw.node_rank, "R",
              "This host's rank among them, from 0. Default: the job's store gives one,\nand the host that has the "
              "endpoint's address is 0");
    text_flag(app, "--rdzv-endpoint", raw.rdzv_endpoint, "HOST[:PORT]",
              "Of several hosts: where node rank 0 serves the job's store, an address or\nname of that host. PORT "
              "defaults to 29400, the whole to\n--master-addr:--master-port");
    text_flag(app, "--rdzv-id", raw.rdzv_id, "NAME", "A name of the job: launchers that give another are turned away");
    text_flag(app, "--rdzv-timeout", raw.rdzv_timeout, "SECONDS",
              "How long to wait until all hosts have come. Default 300");
    text_flag(app, "--rdzv-wait", raw.rdzv_wait, "SECONDS",
              "With --nnodes LEAST:MOST: how long the first start waits for more hosts than\nthe least. Default 30");
    text_flag(app, "--rdzv-backend", raw.rdzv_backend, "static|c10d",
              "Accepted for torchrun's sake, without an effect");
    text_flag(app, "--rdzv-conf", raw.rdzv_conf, "join_timeout=SECONDS",
              "torchrun's spelling of --rdzv-timeout (also timeout=SECONDS), and with\nlast_call_timeout=SECONDS of "
              "--rdzv-wait");
    text_flag(app, "-H,--host", raw.hosts, "HOST[:SLOTS],...",
              "Start a launcher on each of these hosts through a remote shell, with so many\nranks each; without SLOTS "
              "as --nproc-per-node says. -n takes the first N slots");
    text_flag(app, "--hostfile", raw.hostfile, "FILE",
              "The same from a file as Open MPI has it: lines 'HOST slots=N', comments\nbehind #");
    text_flag(app, "--rsh", options.rsh, "COMMAND",
              "The remote shell, which gets HOST and a command. Default\n'ssh -o BatchMode=yes'");
    app.add_option("-x", options.exported,
                   "A variable that travels to the hosts, as it is here or as given; may come\nagain")
        ->option_text("NAME[=VALUE]")
        ->allow_extra_args(false);
    text_flag(app, "--max-restarts", raw.max_restarts, "K",
              "Start the ranks again after a failure, up to K times, as long as each start\nfinishes a new step. "
              "Default 0");
    text_flag(app, "--health-check", options.health_check, "COMMAND",
              "Shell command that says, before each start, whether ranks may start on this\nhost: with exit code 0 "
              "they may");
    app.add_flag("--standalone", standalone, "Accepted for torchrun's sake: a job of one host always is");
  }

  // `own`: from "--" on.
  Command result(const std::vector<std::string>& own, const std::vector<std::string>& arguments,
                 const Environment& environment) {
    options.arguments = arguments;
    options.command = app.remaining();
    if (!options.command.empty()) {
      if (const auto& first = options.command.front(); first.size() > 1 && first.front() == '-') {
        return usage_error(
            " run",
            fmt::format("unknown flag {}; see lockstep run --help (flags of the program come after it)", first));
      }
      options.command.insert(options.command.end(), own.begin(), own.end());  // a "--" behind PROGRAM is the program's
    } else if (!own.empty()) {
      options.command.assign(own.begin() + 1, own.end());
    }
    // First, for `-n ./train` has taken the program for a number.
    const auto variables = take_variables(environment, raw);
    if (auto problem = interpret(raw, options); !problem.empty()) {
      return usage_error(" run", problem + source_of(problem, variables));
    }
    if (options.command.empty()) {
      return usage_error(" run", "no program was given; the form is lockstep run [OPTIONS] [--] PROGRAM [ARGS...]");
    }
    return std::move(options);
  }

  CLI::App& app;
  RunOptions options;
  RawRunFlags raw;
  bool standalone = false;
};

struct ServeCommand {
  explicit ServeCommand(CLI::App& parent)
      : app(*parent.add_subcommand("serve", "Run the server of a store by itself, in the foreground")) {
    app.footer(serve_help());
    text_flag(app, "--host", raw.host, "ADDRESS",
              "Where to listen: an address or name of this host, 0.0.0.0 or :: for all.\nDefault 127.0.0.1");
    text_flag(app, "--port", raw.port, "PORT", "Default 0: a free one");
    text_flag(app, "--secret-file", options.secret_file, "FILE", "The secret: 64 hex digits, mode 0600");
    text_flag(app, "--store-auth", raw.auth, "on|off", "off: serve torch clients, and anybody, without a secret");
    for (std::size_t i = 0; i < limit_flags().size(); ++i) {
      const LimitFlag& flag = limit_flags()[i];
      text_flag(app, flag.name, raw.limits[i], flag.unit == LimitFlag::Unit::bytes ? "SIZE" : "N",
                fmt::format("{}. Default {}", flag.help, flag.default_text()));
    }
    const std::chrono::duration<double> greeting = options.server.greeting_timeout;
    text_flag(app, "--greeting-timeout", raw.greeting_timeout, "SECONDS",
              fmt::format("How long a client may take to say who it is. Default {}", greeting.count()));
  }

  Command result() {
    if (auto problem = interpret(raw, options); !problem.empty()) return usage_error(" store serve", problem);
    return std::move(options);
  }

  CLI::App& app;
  ServeOptions options;
  RawServeFlags raw;
};

struct DoctorCommand {
  explicit DoctorCommand(CLI::App& parent)
      : app(*parent.add_subcommand("doctor", "Tell what a rank would see here, and what is wrong")) {
    app.footer(doctor_help());
    app.add_flag("--json", options.json, "One JSON object instead of lines");
    text_flag(app, "--probe-timeout", probe_timeout, "SECONDS",
              "How long lockstep-probe may take to ask the drivers, and with -H each host\nto answer. Default 60");
    text_flag(app, "-H,--host", raw.hosts, "HOST,...",
              "Whether a job could start on these hosts: starts lockstep on each through a\nremote shell, and has each "
              "connect to every other one");
    text_flag(app, "--hostfile", raw.hostfile, "FILE", "The same of hosts in a file, as lockstep run has it");
    text_flag(app, "--rsh", options.run.rsh, "COMMAND",
              "With -H: the remote shell, which gets HOST and a command. Default\n'ssh -o BatchMode=yes'");
    app.add_option("-x", options.run.exported, "With -H: a variable that travels to the hosts; may come again")
        ->option_text("NAME[=VALUE]")
        ->allow_extra_args(false);
    text_flag(app, "--rdzv-endpoint", raw.rdzv_endpoint, "HOST[:PORT]",
              "With -H: another address of the first host, which the others shall reach");
    text_flag(app, "--program", options.program, "PROGRAM", "A program that must be there, with -H on each host");
  }

  Command result() {
    if (auto problem = interpret_hosts(raw, options.run); !problem.empty()) return usage_error(" doctor", problem);
    if (!raw.rdzv_endpoint.empty() && !options.run.starts_launchers()) {
      return usage_error(" doctor", "--rdzv-endpoint is for hosts that -H or --hostfile names; give one of these");
    }
    if (probe_timeout.empty()) return options;
    const auto limit = parse_seconds(probe_timeout);
    if (!limit || limit->count() == 0) {
      return usage_error(" doctor",
                         fmt::format("--probe-timeout {}: give seconds above 0 and at most 86400", probe_timeout));
    }
    options.probe_timeout = *limit;
    return options;
  }

  CLI::App& app;
  DoctorOptions options;
  RawRunFlags raw;
  std::string probe_timeout;
};

struct SnapshotsCommand {
  explicit SnapshotsCommand(CLI::App& parent)
      : app(*parent.add_subcommand("snapshots", "List what a job has saved, or compare two snapshots")) {
    app.footer(snapshots_help());
    app.add_option("words", words)->group("");
    app.add_flag("--verify", options.verify, "Read every byte, and compare checksums");
    app.add_flag("--json", options.json, "One JSON object instead of lines");
  }

  Command result() {
    constexpr const char* kForm = "the form is lockstep snapshots DIR, or lockstep snapshots diff A B";
    if (words.empty()) return usage_error(" snapshots", fmt::format("no folder was given; {}", kForm));
    const bool is_diff = words.size() > 1 && words.front() == "diff";
    if (words.size() != (is_diff ? 3 : 1)) {
      return usage_error(" snapshots", fmt::format("{} words were given; {}", words.size(), kForm));
    }
    if (std::find(words.begin(), words.end(), "") != words.end()) {
      return usage_error(" snapshots", fmt::format("a folder's name is empty; {}", kForm));
    }
    options.folder = is_diff ? words[1] : words[0];
    if (is_diff) options.other = words[2];
    return options;
  }

  CLI::App& app;
  SnapshotsOptions options;
  std::vector<std::string> words;
};

struct ReportCommand {
  explicit ReportCommand(CLI::App& parent)
      : app(*parent.add_subcommand("report", "Say where a run's time went, as a page and as JSON lines")) {
    app.footer(report_help());
    app.add_option("words", options.folders)->group("");
    text_flag(app, "-o,--output", options.file, "FILE",
              "With several folders: the page to write. Default compare.html");
  }

  Command result() {
    const auto& folders = options.folders;
    if (folders.empty() || folders.size() > 6 || std::ranges::count(folders, "") > 0) {
      return usage_error(" report", fmt::format("{} folders were given; the form is lockstep report DIR, of a run's "
                                                "--log-dir, or FILE.ranks of its --trace FILE; 2 to 6 are compared",
                                                folders.size()));
    }
    return options;
  }

  CLI::App& app;
  ReportOptions options;
};

struct BisectStepCommand {
  explicit BisectStepCommand(CLI::App& parent)
      : app(*parent.add_subcommand("bisect-step", "Name the first step and gradient in which runs differ")) {
    app.footer(bisect_step_help());
    app.add_option("words", options.folders)->group("");
  }

  Command result() {
    if (options.folders.empty() || std::count(options.folders.begin(), options.folders.end(), "") > 0) {
      return usage_error(" bisect-step",
                         options.folders.empty()
                             ? "no folder was given; the form is lockstep bisect-step DIR..., of LOCKSTEP_STEP_DIGESTS"
                             : "a folder's name is empty");
    }
    return options;
  }

  CLI::App& app;
  BisectStepOptions options;
};

// ps, top, inspect, trace, logs and stop.
struct RunsCommand {
  using What = RunsOptions::What;

  RunsCommand(CLI::App& parent, What what, const std::string& name, const std::string& about)
      : app(*parent.add_subcommand(name, about)) {
    options.what = what;
    app.footer(runs_help());
    if (what == What::ps || what == What::top) app.add_flag("--json", options.json, "JSON instead of lines");
    if (what != What::ps) app.add_option("words", words)->group("");
    if (what == What::top) {
      app.add_flag("--once", options.once, "Show it once, and end, as without a terminal");
      text_flag(app, "--interval", interval, "SECONDS", "Between two looks. Default 1");
    }
    if (what == What::trace) {
      text_flag(app, "--steps", number, "N", "Of the last N steps. Default: all that the ranks still have");
      text_flag(app, "-o,--output", options.file, "FILE", "Where to write. Default RUN.trace.json, here");
    }
    if (what == What::logs) {
      app.add_flag("-f,--follow", options.follow, "Go on with what comes, until the job ends");
      text_flag(app, "-n,--lines", number, "N", "So many of the last lines. Default 50");
    }
  }

  Command result() {
    const std::string command = " " + app.get_name();
    if (options.what == What::ps) return options;
    const bool may_be_the_only_one = options.what != What::logs && options.what != What::stop && words.empty();
    if (!may_be_the_only_one && (words.size() != 1 || words.front().empty())) {
      return usage_error(command, fmt::format("{} words were given; the form is lockstep{} RUN, a run id or how one "
                                              "begins, as lockstep ps shows them",
                                              words.size(), command));
    }
    if (!words.empty()) options.run = words.front();
    if (!interval.empty()) {
      const auto seconds = parse_seconds(interval);
      if (!seconds || seconds->count() == 0) {
        return usage_error(command, fmt::format("--interval {}: give seconds above 0 and at most 86400", interval));
      }
      options.interval = *seconds;
    }
    if (number.empty()) return options;
    const bool is_lines = options.what == What::logs;
    const auto count = number == "0" && is_lines ? std::optional<std::int64_t>(0) : parse_count(number, 1'000'000);
    if (!count) {
      return usage_error(command, fmt::format("{} {}: give a number from {} to 1000000",
                                              is_lines ? "--lines" : "--steps", number, is_lines ? 0 : 1));
    }
    (is_lines ? options.lines : options.steps) = static_cast<std::size_t>(*count);
    return options;
  }

  CLI::App& app;
  RunsOptions options;
  std::vector<std::string> words;
  std::string interval;
  std::string number;
};

}  // namespace

Command parse_command_line(const std::vector<std::string>& arguments, const Environment& environment) {
  CLI::App app("lockstep: data-parallel training for people who train in C++", "lockstep");
  app.formatter(std::make_shared<HelpFormatter>());
  app.footer(general_help());
  app.set_version_flag("--version", "lockstep " LOCKSTEP_VERSION);
  app.require_subcommand(0, 1);  // a folder may have the name of another command: lockstep report logs
  RunCommand run(app);
  CLI::App* const agent = app.add_subcommand("agent")->group("");  // for `lockstep run -H` alone
  DoctorCommand doctor(app);
  SnapshotsCommand snapshots(app);
  ReportCommand report(app);
  BisectStepCommand bisect_step(app);
  RunsCommand ps(app, RunsOptions::What::ps, "ps", "List this user's runs on this host");
  RunsCommand top(app, RunsOptions::What::top, "top", "Show what the ranks of a run do, as it goes on");
  RunsCommand inspect(app, RunsOptions::What::inspect, "inspect", "Show where each rank of a run is, with stacks");
  RunsCommand trace(app, RunsOptions::What::trace, "trace", "Write the timeline of a run that goes on");
  RunsCommand logs(app, RunsOptions::What::logs, "logs", "Show what a run writes");
  RunsCommand stop(app, RunsOptions::What::stop, "stop", "Ask a run to stop");
  CLI::App& store = *app.add_subcommand("store", "The rendezvous store by itself: lockstep store serve");
  store.footer(
      "Example:\n  lockstep store serve --host 10.0.0.7 --port 29400\nlockstep store serve has its own --help.");
  ServeCommand serve(store);

  const bool is_run = !arguments.empty() && arguments.front() == "run";
  const auto is_first = [&](const CLI::App* known) { return known->get_name() == arguments.front(); };
  if (!arguments.empty() && !arguments.front().starts_with('-') && app.get_subcommands(is_first).empty()) {
    return usage_error("",
                       fmt::format("'{}' is no command; there are run, ps, top, inspect, trace, logs, stop, report, "
                                   "bisect-step, doctor, snapshots and store serve, see lockstep --help",
                                   arguments.front()));
  }
  // CLI11 goes on looking for flags behind "--", so it gets what is before it only.
  const auto mark = std::find(arguments.begin(), arguments.end(), "--");
  std::vector<std::string> own(arguments.begin(), mark);
  if (is_run) complete_optional_value(run.app, {"-t", "--tee"}, "3", own);
  std::vector<std::string> reversed(own.rbegin(), own.rend());
  const auto command = [&]() -> std::string {
    if (run.app.parsed()) return " run";
    if (doctor.app.parsed()) return " doctor";
    if (snapshots.app.parsed()) return " snapshots";
    if (report.app.parsed()) return " report";
    if (bisect_step.app.parsed()) return " bisect-step";
    for (const RunsCommand* known : {&ps, &top, &inspect, &trace, &logs, &stop}) {
      if (known->app.parsed()) return " " + known->app.get_name();
    }
    return serve.app.parsed() ? " store serve" : store.parsed() ? " store" : "";
  };
  try {
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    return Answer{.exit_code = 0, .out = app.help(), .err = {}};
  } catch (const CLI::CallForVersion& version) {
    return Answer{.exit_code = 0, .out = fmt::format("{}\n", version.what()), .err = {}};
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string_view text = error.what();  // "-n: 1 required TEXT missing"
    return usage_error(command(), fmt::format("{}: give this flag once, with one value; see lockstep{} --help",
                                              text.substr(0, text.find(':')), command()));
  } catch (const CLI::ExtrasError&) {  // whose own text has them in reverse
    return usage_error(command(), fmt::format("not expected: {}; see lockstep{} --help",
                                              fmt::join(app.remaining(true), " "), command()));
  } catch (const CLI::ParseError& error) {
    std::string text = error.what();
    std::replace(text.begin(), text.end(), '\n', ' ');
    return usage_error(command(), fmt::format("{}; see lockstep{} --help", text, command()));
  }
  if (agent->parsed()) return AgentOptions{};
  if (run.app.parsed()) return run.result({mark, arguments.end()}, arguments, environment);
  if (mark != arguments.end()) return usage_error(command(), "'--' is of lockstep run only");
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
  return usage_error("",
                     "no command was given; there are run, ps, top, inspect, trace, logs, stop, report, bisect-step, "
                     "doctor, snapshots and store serve, see lockstep --help");
}

}  // namespace lockstep::launcher
