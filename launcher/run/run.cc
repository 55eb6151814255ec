// SPDX-License-Identifier: Apache-2.0
#include "launcher/run/run.h"

#include <fmt/format.h>

#include <cerrno>

#include "launcher/base/exit_codes.h"
#include "launcher/base/signals.h"
#include "launcher/base/system.h"
#include "launcher/placement/preparation.h"
#include "launcher/process/spawn.h"
#include "launcher/run/host_parts.h"
#include "launcher/run/local_control.h"
#include "launcher/run/run_stores.h"
#include "launcher/verdict/restart_policy.h"
#include "lockstep/base/error.h"
#include "runtime/base/host.h"
#include "runtime/base/logging.h"
#include "runtime/base/random_bytes.h"
#include "runtime/job/exit_code.h"
#include "runtime/job/stop_signals.h"
#include "runtime/net/open_files.h"
#include "runtime/net/port_range.h"
#include "runtime/rendezvous/identity/identity.h"
#include "runtime/rendezvous/join.h"
#include "runtime/store/secret.h"

namespace lockstep::launcher {
namespace {

int complain(int exit_code, std::string_view text) {
  print_error(fmt::format("lockstep run: {}", text));
  return exit_code;
}

// Warns about `mpirun -n 2 lockstep run ...`: two independent jobs, which is rarely intended. Empty otherwise.
std::string one_of_several(const Environment& environment, const std::string& program) {
  try {
    const auto outer = rendezvous::identify(environment);
    if (outer.world_size < 2) return {};
    return fmt::format(
        "this command is itself rank {}/{} from {}: each of the {} starts its own job, and these don't train together; "
        "to train as one, start {} instead of this command",
        outer.rank, outer.world_size, outer.source, outer.world_size, program);
  } catch (const Error&) {
    // The variables don't identify a rank: they don't reach the job's ranks, and don't prove an outer launcher.
    return {};
  }
}

// Runs one start of the ranks.
StartOutcome start_ranks(const RunOptions& options, const Preparation& preparation, JobOptions job_options,
                         const Environment& environment, HostParts& parts, RunStores& stores, RestartPolicy& restarts,
                         WakingQueue<membership::MemberNews>& news) {
  const std::string scope = rendezvous::attempt_prefix(job_options.contract.run_id, job_options.contract.restarts);
  job_options.members = [&stores, scope] { return stores.members(scope); };
  FailureArbiter::Options arbiter{.hosts = job_options.contract.hosts,
                                  .grace = options.grace,
                                  .requeue_exit_code = requeue_exit_code(environment),
                                  .stop_timeout = stop_timeout(environment),
                                  .scope = scope,
                                  .restarts = &restarts,
                                  .members = job_options.members,
                                  .on_conclusion = verdict_writer(options.log_dir, job_options.contract.run_id,
                                                                  job_options.contract.start(), parts.console)};
  const auto outcome = run_ranks(options, preparation, std::move(job_options), environment, parts, [&](auto facts) {
    arbiter.facts = std::move(facts);
    return std::make_unique<LocalControl>(std::move(arbiter), news);
  });
  stores.forget(scope);
  return outcome;
}

// Returns the remedy for errors that more ranks than the host allows cause.
std::string remedy(const SystemError& error) {
  switch (error.error_number()) {
    case EMFILE:
      return fmt::format("; the limit is {} (ulimit -n), and each rank takes 2 to 12: raise it, or start fewer ranks",
                         net::open_files_limit().hard);
    case ENFILE: return "; that is the host's limit, fs.file-max: raise it, or start fewer ranks";
    case EAGAIN:
      return "; this user or container may have no more processes (ulimit -u, --pids-limit): raise that limit, or "
             "start fewer ranks";
    default: return {};
  }
}

}  // namespace

int start_one_host(const RunOptions& options, const Environment& environment) {
  HostParts parts;
  Preparation preparation;
  {
    const SignalsLetThrough until_the_start(parts.signals);
    preparation = prepare(options, environment, parts.guardian);
  }
  if (preparation.program.path.empty()) return complain(preparation.program.exit_code, preparation.program.problem);
  JobOptions job_options;
  Contract& contract = job_options.contract = contract_of(options);
  contract.hosts = {{.name = host_name(), .ranks = preparation.count.ranks}};
  contract.run_id = "run-" + random_hex(8);

  contract.store_secret = store::Secret::random();
  WakingQueue<membership::MemberNews> news;
  RunStores stores(options, {.run_id = contract.run_id}, contract,
                   [&news](const membership::MemberNews& of) { news.put(of); });
  if (const auto address = stores.open_address(); !address.empty()) parts.console.message(torch_store_warning(address));
  if (const auto warning = one_of_several(environment, options.command.front()); !warning.empty()) {
    parts.console.message(warning);
  }
  say_before_the_start(options, preparation, environment, parts.console);
  RestartPolicy restarts(options.max_restarts, false);
  const int requeue = requeue_exit_code(environment);
  const auto end_here = [&](int exit_code, const std::string& why) {
    end_after_verdict(options.log_dir, contract.start(), exit_code, why, parts.console);
    return complain(exit_code, why);
  };
  while (true) {
    const auto outcome = start_ranks(options, preparation, job_options, environment, parts, stores, restarts, news);
    if (!outcome.again) {
      parts.guardian.disarm();
      return outcome.exit_code;
    }
    if (const auto signal = outcome.late_stop ? outcome.late_stop : parts.signals.pause(*outcome.again)) {
      return end_here(requeue, stopped_between_starts(*signal, requeue));
    }
    try {
      preparation = prepare(options, environment, parts.guardian);
      if (preparation.program.path.empty()) return end_here(preparation.program.exit_code, preparation.program.problem);
    } catch (const InvalidArgument& error) {  // this host has become unfit: another one may be fit
      return end_here(requeue, fmt::format("{}; exit code {}", error.what(), requeue));
    }
    contract.hosts.front().ranks = preparation.count.ranks;
    ++contract.restarts;
  }
}

int exit_code_of_run(const std::function<int(const Environment& environment)>& start) {
  set_log_label("run");  // label for log lines while there is no console
  try {
    const auto environment = Environment::of_process();
    net::port_range(environment);  // a wrong value must be found before any process starts
    return start(environment);
  } catch (const InvalidArgument& error) {
    return complain(kExitUsage, error.what());
  } catch (const ExecError& error) {
    const bool wrong_format = error.error_number() == ENOEXEC;
    return complain(
        error.error_number() == ENOENT ? kExitNotFound : kExitNotExecutable,
        fmt::format("{}{}", error.what(), wrong_format ? "; a script needs a first line such as #!/bin/sh" : ""));
  } catch (const SystemError& error) {
    return complain(kExitInternal, error.what() + remedy(error));
  } catch (const Error& error) {
    return complain(kExitInternal, error.what());
  }
}

}  // namespace lockstep::launcher
