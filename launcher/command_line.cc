#include "launcher/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <memory>
#include <string_view>

#include "runtime/base/environment.h"

namespace lockstep::launcher {
namespace {

constexpr std::string_view kRunExamples = R"(Examples:
  lockstep run ./train                              one rank per GPU, or per core where there is none
  lockstep run --nproc-per-node 4 ./train           four ranks
  lockstep run -n 2 -- ./train --epochs 3           arguments after PROGRAM are the program's
  lockstep run -n 4 --log-dir logs ./train          logs/rank0.out, logs/rank0.err, ...

Each rank gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT and lockstep's own
LOCKSTEP_STORE, LOCKSTEP_RUN_ID, LOCKSTEP_RESTART_COUNT. Rank 0 reads this command's standard input unless that is a
terminal; the other ranks read nothing.

SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to the ranks. After one of the first four
the ranks may take their time, to save; a second one kills them.

EXIT CODES
  0        every rank ended with 0
  1-255    that of the rank that failed first, which the first and the last message name; among them
  75       every rank that failed says that it lost another one, which ended with 0 or did not end: see what it says
  134      a rank aborted (128 + 6, SIGABRT): an uncaught exception of the program's own, or a failed assertion
  137      a rank was killed (128 + 9, SIGKILL): by somebody, or by the kernel because memory ran out
  128 + N  signal N killed the rank that failed first, or ended the job: 130 after Ctrl-C, 143 after SIGTERM
  1        also: lockstep itself can't go on, such as for want of processes or open files; its message says why
  2        also: this command line is wrong, or asks for what isn't here
  126      also: PROGRAM can't be executed
  127      also: PROGRAM was not found)";

constexpr std::string_view kExamples = R"(Examples:
  lockstep run --nproc-per-node 4 ./train
  lockstep run --help)";

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
  std::string make_usage(const CLI::App* app, std::string name) const override {
    if (app->get_name() == "run") return "Usage: lockstep run [OPTIONS] [--] PROGRAM [ARGS...]\n";
    return CLI::Formatter::make_usage(app, name);
  }
};

// "--log-dir" to "--log-dir,--log_dir".
std::string spellings(std::string_view name) {
  std::string other(name);
  std::replace(other.begin() + 2, other.end(), '-', '_');
  return other == name ? other : fmt::format("{},{}", name, other);
}

Answer usage_error(std::string_view text) {
  return {.exit_code = kExitUsage, .out = {}, .err = fmt::format("lockstep run: {}\n", text)};
}

// Text of the flags whose values need a closer look than CLI11's.
struct RawFlags {
  std::string ranks;
  std::string nnodes;
  std::string node_rank;
  std::string max_restarts;
  std::string grace;
  std::string timeout;
  std::string master_port;
};

bool is_torch_nproc_word(std::string_view text) { return text == "auto" || text == "cpu" || text == "gpu"; }

std::string ranks_problem(std::string_view flag, std::string_view text) {
  const auto number = parse_int(text);
  if (number && *number >= 1 && *number <= kMaxRanks) return {};
  return fmt::format("{} {}: give a number of ranks from 1 to {}{}", flag, text, kMaxRanks,
                     flag == "-n" ? "" : ", or auto, cpu or gpu");
}

std::optional<double> parse_seconds(const std::string& text) {
  try {
    std::size_t used = 0;
    const double value = std::stod(text, &used);
    if (used == text.size() && value >= 0 && value <= 86400) return value;
  } catch (const std::exception&) {  // not a number at all
  }
  return std::nullopt;
}

// Moves the raw texts into `options`; returns what is wrong with them, or nothing.
std::string interpret(const RawFlags& raw, RunOptions& options) {
  if (!is_torch_nproc_word(options.nproc_per_node)) {
    if (auto problem = ranks_problem("--nproc-per-node", options.nproc_per_node); !problem.empty()) return problem;
  }
  if (!raw.ranks.empty()) {
    if (auto problem = ranks_problem("-n", raw.ranks); !problem.empty()) return problem;
    options.ranks = static_cast<int>(*parse_int(raw.ranks));
  }
  if (!raw.nnodes.empty() && raw.nnodes != "1" && raw.nnodes != "1:1") {
    return fmt::format("--nnodes {}: only one host is supported so far; leave it out or give 1", raw.nnodes);
  }
  if (!raw.node_rank.empty() && raw.node_rank != "0") {
    return fmt::format("--node-rank {}: only one host is supported so far, and its rank is 0", raw.node_rank);
  }
  if (!raw.max_restarts.empty() && raw.max_restarts != "0") {
    return fmt::format("--max-restarts {}: restarting is not supported so far; leave it out or give 0",
                       raw.max_restarts);
  }
  if (!raw.grace.empty()) {
    const auto seconds = parse_seconds(raw.grace);
    if (!seconds) return fmt::format("--grace {}: give seconds from 0 to 86400, such as 0.7", raw.grace);
    options.grace = std::chrono::milliseconds(static_cast<std::int64_t>(*seconds * 1000));
  }
  if (!raw.timeout.empty()) {
    const auto seconds = parse_int(raw.timeout);
    if (!seconds || *seconds < 1 || *seconds > 30 * 86400) {
      return fmt::format("--timeout {}: give whole seconds, at least 1 and at most 30 days", raw.timeout);
    }
    options.timeout = static_cast<int>(*seconds);
  }
  if (!raw.master_port.empty()) {
    const auto port = parse_int(raw.master_port);
    if (!port || *port < 0 || *port > 65535) {
      return fmt::format("--master-port {}: give a port from 1 to 65535, or 0 for a free one", raw.master_port);
    }
    options.master_port = static_cast<int>(*port);
  }
  return {};
}

}  // namespace

std::variant<RunOptions, Answer> parse_command_line(const std::vector<std::string>& arguments) {
  CLI::App app("lockstep: data-parallel training for people who train in C++", "lockstep");
  app.formatter(std::make_shared<HelpFormatter>());
  app.footer(std::string(kExamples));
  app.set_version_flag("--version", "lockstep " LOCKSTEP_VERSION);

  CLI::App& run = *app.add_subcommand("run", "Start the ranks of a job on this host and watch them");
  run.footer(std::string(kRunExamples));
  run.prefix_command();

  RunOptions options;
  RawFlags raw;
  bool standalone = false;
  run.add_option(spellings("--nproc-per-node"), options.nproc_per_node,
                 "Ranks on this host: a number; gpu: one per GPU; cpu: one per core this\nprocess may use; "
                 "auto (default): gpu if there is one, else cpu")
      ->option_text("N|auto|cpu|gpu");
  run.add_option("-n", raw.ranks, "Ranks in all; on one host the same as --nproc-per-node N")->option_text("N");
  run.add_option(spellings("--log-dir"), options.log_dir,
                 "Write each rank's output to DIR/rankN.out and DIR/rankN.err, replacing\nwhat is there, instead of "
                 "here with a prefix")
      ->option_text("DIR");
  run.add_option("--grace", raw.grace,
                 "When a rank fails: seconds between SIGTERM and SIGKILL for the others.\nDefault 0.7")
      ->option_text("SECONDS");
  run.add_option("--timeout", raw.timeout, "LOCKSTEP_TIMEOUT of the ranks: limit of start-up and of each\ncollective")
      ->option_text("SECONDS");
  run.add_option(spellings("--master-addr"), options.master_addr,
                 "MASTER_ADDR of the ranks, for programs that host their own store there.\nDefault 127.0.0.1")
      ->option_text("ADDRESS");
  run.add_option(spellings("--master-port"), raw.master_port,
                 "MASTER_PORT of the ranks; nothing of lockstep listens there.\nDefault: a free one")
      ->option_text("PORT");
  run.add_option("--nnodes", raw.nnodes, "Hosts of the job; only 1 so far")->option_text("1");
  run.add_option(spellings("--node-rank"), raw.node_rank, "This host's rank among them; only 0 so far")
      ->option_text("0");
  run.add_option(spellings("--max-restarts"), raw.max_restarts, "Restarts after a failure; only 0 so far")
      ->option_text("0");
  run.add_flag("--standalone", standalone, "Accepted for torchrun's sake: a job of one host always is");

  // CLI11 goes on looking for flags behind "--", so it gets what is before it only.
  const auto mark = std::find(arguments.begin(), arguments.end(), "--");
  std::vector<std::string> reversed(std::make_reverse_iterator(mark), arguments.rend());
  try {
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    return Answer{.exit_code = 0, .out = app.help(), .err = {}};
  } catch (const CLI::CallForVersion& version) {
    return Answer{.exit_code = 0, .out = fmt::format("{}\n", version.what()), .err = {}};
  } catch (const CLI::ParseError& error) {
    std::string text = error.what();
    std::replace(text.begin(), text.end(), '\n', ' ');
    return Answer{.exit_code = kExitUsage,
                  .out = {},
                  .err = fmt::format("lockstep{}: {}; see lockstep {}--help\n", run.parsed() ? " run" : "", text,
                                     run.parsed() ? "run " : "")};
  }
  if (!run.parsed()) {
    return Answer{.exit_code = kExitUsage,
                  .out = {},
                  .err = "lockstep: no command was given; the one there is: lockstep run, see lockstep --help\n"};
  }

  options.command = run.remaining();
  if (!options.command.empty()) {
    if (const auto& first = options.command.front(); first.size() > 1 && first.front() == '-') {
      return usage_error(
          fmt::format("unknown flag {}; see lockstep run --help (flags of the program come after it)", first));
    }
    options.command.insert(options.command.end(), mark, arguments.end());  // a "--" behind PROGRAM is the program's
  } else if (mark != arguments.end()) {
    options.command.assign(mark + 1, arguments.end());
  }
  if (options.command.empty()) {
    return usage_error("no program was given; the form is lockstep run [OPTIONS] [--] PROGRAM [ARGS...]");
  }
  if (auto problem = interpret(raw, options); !problem.empty()) return usage_error(problem);
  return options;
}

}  // namespace lockstep::launcher
