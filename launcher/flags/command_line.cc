// SPDX-License-Identifier: Apache-2.0
#include "launcher/flags/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include "launcher/base/exit_codes.h"
#include "launcher/flags/flag_table.h"
#include "launcher/flags/flag_values.h"
#include "launcher/flags/help_format.h"
#include "launcher/flags/help_text.h"
#include "launcher/flags/run_flags.h"
#include "launcher/flags/serve_flags.h"
#include "runtime/base/text.h"

namespace lockstep::launcher {
namespace {

// Returns the answer "lockstep run: TEXT".
Answer usage_error(std::string_view command, std::string_view text) {
  return {.exit_code = kExitUsage, .out = {}, .err = fmt::format("lockstep{}: {}\n", command, text)};
}

constexpr std::array<std::string_view, 13> kCommands = {"run",         "ps",     "top",    "inspect", "trace",
                                                        "logs",        "stop",   "report", "doctor",  "snapshots",
                                                        "bisect-step", "replay", "store"};

std::string list_of_commands() {
  return fmt::format("there are {} serve; see lockstep --help", fmt::join(kCommands, ", "));
}

// Makes the command from its flags, after the parse. Throws InvalidArgument.
using MakeCommand = std::function<Command()>;

MakeCommand add_doctor_flags(FlagTable& flags) {
  const auto options = std::make_shared<DoctorOptions>();
  flags.add("--json", "", "One JSON object instead of lines", &options->json);
  flags.add("--gpus", "",
            "Try all GPUs together, and each pair of them, each in its own job: sums, bandwidths, steps, a killed "
            "rank. Takes a minute or two, in which they should be idle",
            &options->gpus);
  flags.add("--probe-timeout", "SECONDS",
            "How long lockstep-probe may take to ask the drivers, and with -H each host to answer; --gpus takes twice "
            "as long at most. Default 60",
            read_seconds_above_0(options->probe_timeout));
  flags.add("-H,--host", "HOST,...",
            "Check whether a job could start on these hosts: starts lockstep on each through a remote shell, and each "
            "connects to every other one",
            [&hosts = options->run.hosts](auto, auto& text) { hosts = parse_hosts(text); });
  flags.add("--hostfile", "FILE", "The same for hosts in a file, as for lockstep run", &options->run.hostfile);
  flags.add("--rsh", "COMMAND",
            "With -H: the remote shell, which gets HOST and a command. Default 'ssh -o BatchMode=yes'",
            &options->run.rsh);
  flags.add("-x", "NAME[=VALUE]", "With -H: a variable to copy to the hosts; may be repeated", &options->run.exported);
  flags.add("--rdzv-endpoint", "HOST[:PORT]", "With -H: another address of the first host, for the others", ReadFlag());
  return [&flags, options]() -> Command {
    flags.read();
    check_hosts(flags, options->run);
    if (!flags.text("--rdzv-endpoint").empty() && !options->run.starts_launchers()) {
      refuse(
          "--rdzv-endpoint is for hosts that -H or --hostfile names; give -H or --hostfile, or leave --rdzv-endpoint "
          "out");
    }
    for (const std::string flag : {"-H", "--hostfile", "--rsh", "--rdzv-endpoint"}) {
      const std::string text = flags.text(flag);
      if (!text.empty()) options->host_flags.insert(options->host_flags.end(), {flag, text});
    }
    for (const std::string& variable : options->run.exported) {
      options->host_flags.insert(options->host_flags.end(), {"-x", variable});
    }
    return *options;
  };
}

MakeCommand add_snapshots_flags(FlagTable& flags) {
  const auto options = std::make_shared<SnapshotsOptions>();
  const auto words = std::make_shared<std::vector<std::string>>();
  flags.add_words(*words);
  flags.add("--verify", "", "Read every byte, and compare checksums", &options->verify);
  flags.add("--json", "", "One JSON object instead of lines", &options->json);
  return [options, words]() -> Command {
    constexpr const char* kForm =
        "use lockstep snapshots DIR, lockstep snapshots diff A B, or lockstep snapshots export SNAPSHOT OUT";
    if (words->empty()) refuse("no folder was given; {}", kForm);
    const bool is_diff = words->size() > 1 && words->front() == "diff";
    const bool is_export = words->size() > 1 && words->front() == "export";
    if (words->size() != (is_diff || is_export ? 3 : 1)) refuse("{}", kForm);
    if (is_export && (options->verify || options->json))
      refuse("lockstep snapshots export takes no flags, since it reads every byte; leave out --verify and --json");
    if (std::ranges::count(*words, "") > 0) refuse("a folder's name is empty; {}", kForm);
    options->folder = words->at(is_diff || is_export ? 1 : 0);
    if (is_diff) options->other = words->at(2);
    if (is_export) options->output = words->at(2);
    return *options;
  };
}

MakeCommand add_report_flags(FlagTable& flags) {
  const auto options = std::make_shared<ReportOptions>();
  flags.add_words(options->folders);
  flags.add("-o,--output", "FILE", "The page to write. Default DIR/report.html; with several folders compare.html",
            &options->file);
  return [&flags, options]() -> Command {
    flags.read();
    const auto& folders = options->folders;
    if (folders.empty() || folders.size() > 6 || std::ranges::count(folders, "") > 0) {
      refuse(
          "{} folders were given, but lockstep report takes 1 to 6 folders, and compares several; give the --log-dir "
          "of each run, or FILE.ranks of its --trace FILE",
          folders.size());
    }
    return *options;
  };
}

MakeCommand add_bisect_step_flags(FlagTable& flags) {
  const auto options = std::make_shared<BisectStepOptions>();
  flags.add_words(options->folders);
  return [options]() -> Command {
    if (options->folders.empty()) {
      refuse("no folder was given; use lockstep bisect-step DIR... with folders of LOCKSTEP_STEP_DIGESTS");
    }
    if (std::ranges::count(options->folders, "") > 0) refuse("a folder's name is empty");
    return *options;
  };
}

MakeCommand add_replay_flags(FlagTable& flags, const std::vector<std::string>& arguments) {
  const auto options = std::make_shared<ReplayOptions>();
  const auto words = std::make_shared<std::vector<std::string>>();
  flags.add_words(*words);
  flags.add("-n", "N", "The number of ranks of the replay, on this host. Default 1",
            read_as(options->run.ranks.emplace(1), up_to(1'000'000), "give a number of ranks, at least 1"));
  flags.add("--digests", "DIR",
            "A folder that LOCKSTEP_STEP_DIGESTS named in the run of A and B: names the micro-batch and the gradient "
            "that differ first. May be repeated",
            &options->digests);
  return [&flags, &arguments, options, words]() -> Command {
    flags.read();
    const auto mark = std::ranges::find(arguments, "--");
    if (words->size() != 2 || mark == arguments.end() || mark + 1 == arguments.end()) {
      refuse("use lockstep replay [FLAGS] A B -- PROGRAM [ARGUMENTS], with two snapshots of the program");
    }
    if (std::ranges::count(*words, "") > 0) refuse("a snapshot's name is empty");
    options->from = words->front();
    options->to = words->back();
    options->run.command.assign(mark + 1, arguments.end());
    options->run.arguments = arguments;
    return *options;
  };
}

// The flags of ps, top, inspect, trace, logs and stop.
template <RunsOptions::What what>
MakeCommand add_runs_flags(FlagTable& flags) {
  using What = RunsOptions::What;
  const auto options = std::make_shared<RunsOptions>();
  options->what = what;
  const auto words = std::make_shared<std::vector<std::string>>();
  flags.app().footer(flags.app().get_footer() + std::string(kExitCodesOfRuns));
  if (what == What::ps || what == What::top) flags.add("--json", "", "JSON instead of lines", &options->json);
  if (what != What::ps) flags.add_words(*words);
  if (what == What::top) {
    flags.add("--once", "", "Print once and exit, as without a terminal", &options->once);
    flags.add("--interval", "SECONDS", "Time between two updates. Default 1", read_seconds_above_0(options->interval));
  }
  if (what == What::trace) {
    flags.add("--steps", "N", "Only the last N steps. Default: all that are kept",
              read_as(options->steps, up_to(1'000'000), "give a number from 1 to 1000000"));
    flags.add("-o,--output", "FILE", "Where to write. Default RUN.trace.json, here", &options->file);
  }
  if (what == What::logs) {
    flags.add("-f,--follow", "", "Continue with new lines until the job ends", &options->follow);
    flags.add("-n,--lines", "N", "Begin with the last N lines. Default 50",
              read_as(options->lines, up_to(1'000'000, 0), "give a number from 0 to 1000000"));
  }
  return [&flags, options, words]() -> Command {
    if (what == What::ps) return *options;
    if (!(what != What::stop && words->empty()) && (words->size() != 1 || words->front().empty())) {
      refuse(
          "give one run: lockstep {} RUN, where RUN is a run id that lockstep ps shows, or the beginning of a run id",
          flags.app().get_name());
    }
    if (!words->empty()) options->run = words->front();
    flags.read();
    return *options;
  };
}

}  // namespace

Command parse_command_line(const std::vector<std::string>& arguments, const Environment& environment) {
  CLI::App app(std::string(help_of("lockstep").about), "lockstep");
  app.formatter(help_formatter());
  app.footer(std::string(help_of("lockstep").text));
  app.set_version_flag("--version", "lockstep " LOCKSTEP_VERSION);
  app.require_subcommand(0, 1);  // a folder may have the name of another command: lockstep report logs
  std::map<const CLI::App*, std::pair<FlagTable, MakeCommand>> commands;
  const auto add = [&commands](CLI::App& parent, const std::string& name, const auto& add_flags) -> FlagTable& {
    const HelpText& texts = help_of(name);
    CLI::App& command = *parent.add_subcommand(name, std::string(texts.about));
    command.footer(std::string(texts.text))->group(texts.about.empty() ? "" : "Subcommands");
    auto& [flags, make] = commands.emplace(&command, std::pair(FlagTable(command), MakeCommand())).first->second;
    make = add_flags(flags);
    return flags;
  };
  using What = RunsOptions::What;
  const FlagTable& run =
      add(app, "run", [&](FlagTable& flags) { return add_run_flags(flags, arguments, environment); });
  add(app, "agent", [](FlagTable&) { return [] { return AgentOptions{}; }; });  // only for `lockstep run -H`
  add(app, "doctor", add_doctor_flags);
  add(app, "snapshots", add_snapshots_flags);
  add(app, "report", add_report_flags);
  add(app, "bisect-step", add_bisect_step_flags);
  add(app, "replay", [&](FlagTable& flags) { return add_replay_flags(flags, arguments); });
  add(app, "ps", add_runs_flags<What::ps>);
  add(app, "top", add_runs_flags<What::top>);
  add(app, "inspect", add_runs_flags<What::inspect>);
  add(app, "trace", add_runs_flags<What::trace>);
  add(app, "logs", add_runs_flags<What::logs>);
  add(app, "stop", add_runs_flags<What::stop>);
  const FlagTable& store = add(app, "store", [](FlagTable&) {
    return []() -> Command {
      refuse("the command lockstep store is incomplete; use lockstep store serve; see lockstep store serve --help");
    };
  });
  add(store.app(), "serve", add_serve_flags);

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
    return usage_error(
        "", fmt::format("'{}' is not a command{}", arguments.front(), near.empty() ? "; " + list_of_commands() : near));
  }
  // CLI11 would look for flags behind "--" too, so it gets only the words before it.
  const auto mark = std::find(arguments.begin(), arguments.end(), "--");
  std::vector<std::string> own(arguments.begin(), mark);
  if (is_run) run.complete(own);
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
    const bool takes_program = is_run || innermost()->get_name() == "replay";
    if (mark != arguments.end() && !takes_program) {
      return usage_error(command(), "'--' is for lockstep run and lockstep replay only");
    }
    if (const auto parsed = commands.find(innermost()); parsed != commands.end()) return parsed->second.second();
  } catch (const InvalidArgument& error) {
    return usage_error(command(), error.what());
  } catch (const CLI::CallForHelp&) {
    const bool is_short = run.app().parsed() && run.app().remaining() != std::vector<std::string>{"all"};
    return Answer{.exit_code = 0, .out = is_short ? short_run_help(run.brief_help()) : app.help(), .err = {}};
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
