// SPDX-License-Identifier: Apache-2.0
#include "launcher/run/run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "launcher/output/console.h"
#include "launcher/output/log_relay.h"
#include "launcher/run/find_program.h"
#include "launcher/run/gpu_choice.h"
#include "launcher/run/job.h"
#include "launcher/run/rank_count.h"
#include "launcher/run/run_stores.h"
#include "launcher/run/seen_gpus.h"
#include "launcher/run/shared_gpu.h"
#include "launcher/run/spawn.h"
#include "launcher/signals.h"
#include "launcher/system.h"
#include "launcher/waking_queue.h"
#include "launcher/watch/guardian.h"
#include "lockstep/base/error.h"
#include "runtime/base/cpu.h"
#include "runtime/base/exit_code.h"
#include "runtime/base/logging.h"
#include "runtime/base/random_bytes.h"
#include "runtime/base/variables.h"
#include "runtime/net/open_files.h"
#include "runtime/rendezvous/identity.h"
#include "runtime/store/secret.h"

namespace lockstep::launcher {
namespace {

// All but what RunStores fills in.
Contract contract_of(const RunOptions& options, int ranks) {
  Contract contract;
  contract.world_size = ranks;
  contract.run_id = "run-" + random_hex(8);
  contract.master_addr = options.master_addr;
  contract.torch_store = options.torch_store;
  contract.liveness = options.liveness;
  contract.hang_timeout = options.hang_timeout;
  contract.stop_timeout = options.stop_timeout;
  if (options.requeue_exit_code) contract.requeue_exit_code = fmt::format("{}", *options.requeue_exit_code);
  contract.share_gpus = options.oversubscribe_gpu;
  if (options.timeout) contract.timeout = fmt::format("{}", *options.timeout);
  return contract;
}

int complain(int exit_code, std::string_view text) {
  print_error(fmt::format("lockstep run: {}", text));
  return exit_code;
}

struct RankGpus {
  Gpus found;
  std::optional<std::string> visible_devices;  // for the ranks, where the user chose
};

// A driver is asked only where its answer counts: that takes long, and a job on the CPU need not wait for it.
RankGpus gpus_of_ranks(const RunOptions& options, const Environment& environment) {
  Gpus found = find_gpus("/proc/driver/nvidia/gpus", "/dev", environment);
  if (options.devices.empty() && (options.nproc_per_node != "gpu" || found.count > 0)) return {found, {}};
  SeenGpus seen = ask_gpus();
  if (options.devices.empty()) {
    if (seen.gpus.empty()) return {{0, fmt::format("{}; {}", found.reason, seen.reason)}, {}};
    return {{static_cast<int>(seen.gpus.size()), {}}, {}};
  }
  if (seen.gpus.empty() && found.count == 0) {
    throw InvalidArgument(fmt::format("--devices {}: no GPU here: {}", fmt::join(options.devices, ","), seen.reason));
  }
  // Where this lockstep is without CUDA, the driver's files still say how many there are.
  if (seen.gpus.empty()) seen.gpus.resize(static_cast<std::size_t>(found.count));
  const auto inherited = environment.variables().find("CUDA_VISIBLE_DEVICES");
  return {{static_cast<int>(options.devices.size()), {}},
          visible_devices_of_ranks(
              options.devices, seen.gpus,
              inherited == environment.variables().end() ? std::nullopt : std::optional(inherited->second))};
}

void make_log_dir(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw InvalidArgument(fmt::format("--log-dir: can't make the folder {}: {}", folder, errno_text(error.value())));
  }
}

// `mpirun -n 2 lockstep run ...`: two jobs that know nothing of each other, which nobody may want. Nothing otherwise.
std::string one_of_several(const Environment& environment, const std::string& program) {
  try {
    const auto outer = rendezvous::identify(environment);
    if (outer.world_size < 2) return {};
    return fmt::format(
        "this command is itself rank {}/{} from {}: each of the {} starts a job of its own, and these don't train "
        "together; to train as one, start {} in its place",
        outer.rank, outer.world_size, outer.source, outer.world_size, program);
  } catch (const Error&) {  // variables that make no rank: they don't reach ours, and say nothing of a launcher
    return {};
  }
}

int start(const RunOptions& options) {
  const auto environment = Environment::of_process();
  const auto program = find_program(options.command.front(), environment);
  if (program.path.empty()) return complain(program.exit_code, program.problem);
  const RankGpus gpus = gpus_of_ranks(options, environment);
  const auto count = choose_ranks(options, gpus.found, allowed_cores());
  require_a_gpu_each(count.ranks, options.devices, options.oversubscribe_gpu);
  if (!options.log_dir.empty()) make_log_dir(options.log_dir);

  JobOptions job_options;
  job_options.program = program.path;
  job_options.command = options.command;
  job_options.log_dir = options.log_dir;
  job_options.grace = options.grace;
  job_options.requeue_exit_code =
      options.requeue_exit_code ? *options.requeue_exit_code : requeue_exit_code(environment);
  job_options.contract = contract_of(options, count.ranks);
  job_options.contract.visible_devices = gpus.visible_devices;

  Console console(STDOUT_FILENO, STDERR_FILENO);
  Signals signals;
  const Pipe life = make_pipe();
  Guardian guardian(
      {.run_id = job_options.contract.run_id, .life_fd = life.read_end.get(), .life_end = life.write_end.get()});
  LogRelay log;
  job_options.contract.store_secret = store::Secret::random();  // after the guardian's fork: it need not have it
  WakingQueue<membership::MemberNews> news;
  const RunStores stores(options, job_options.contract, [&news](const membership::MemberNews& of) { news.put(of); });
  job_options.members = [&stores] { return stores.members(); };
  if (const auto address = stores.open_address(); !address.empty()) {
    console.message(
        fmt::format("--torch-store: torch's protocol at {}, without a secret: whoever reaches it may read, change and "
                    "stop what runs through it",
                    address));
  }
  if (!count.reason.empty()) {
    console.message(fmt::format("{} {} ({})", count.ranks, count.ranks == 1 ? "rank" : "ranks", count.reason));
  }
  for (const auto& line : misspelt_variables(environment)) console.message(line);
  if (const auto warning = one_of_several(environment, options.command.front()); !warning.empty()) {
    console.message(warning);
  }
  if (options.oversubscribe_gpu) {
    console.message(
        "--oversubscribe-gpu: ranks may share a GPU and then talk over sockets: for correctness, not for speed");
    for (const auto& line : variables_that_win(environment)) console.message(line);
  }
  try {
    const int code = Job(std::move(job_options), environment, console, signals, guardian, log, life, news).run();
    guardian.disarm();
    return code;
  } catch (const ExecError& error) {
    const bool wrong_format = error.error_number() == ENOEXEC;
    return complain(
        error.error_number() == ENOENT ? kExitNotFound : kExitNotExecutable,
        fmt::format("{}{}", error.what(), wrong_format ? "; a script needs a first line such as #!/bin/sh" : ""));
  }
}

// Of those that more ranks than the host allows run into.
std::string remedy(const SystemError& error) {
  switch (error.error_number()) {
    case EMFILE:
      return fmt::format("; the limit is {} (ulimit -n), and each rank takes 2 to 12: raise it, or start fewer ranks",
                         net::open_files_limit().hard);
    case ENFILE: return "; that is the host's limit, fs.file-max: raise it, or start fewer ranks";
    case EAGAIN:
      return "; this user or container may have no more processes (ulimit -u, --pids-limit): raise it, or start fewer "
             "ranks";
    default: return {};
  }
}

}  // namespace

int run_command(const RunOptions& options) {
  set_log_label("run");  // for what is logged while there is no console
  try {
    return start(options);
  } catch (const InvalidArgument& error) {
    return complain(kExitUsage, error.what());
  } catch (const SystemError& error) {
    return complain(kExitInternal, error.what() + remedy(error));
  } catch (const Error& error) {
    return complain(kExitInternal, error.what());
  }
}

}  // namespace lockstep::launcher
