#include "launcher/run.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "launcher/console.h"
#include "launcher/find_program.h"
#include "launcher/guardian.h"
#include "launcher/job.h"
#include "launcher/log_relay.h"
#include "launcher/rank_count.h"
#include "launcher/signals.h"
#include "launcher/spawn.h"
#include "runtime/base/cpu.h"
#include "runtime/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/net/tcp_socket.h"
#include "runtime/store/tcp_store_server.h"

namespace lockstep::launcher {
namespace {

std::string random_run_id() {
  std::uint64_t bits = 0;
  if (getrandom(&bits, sizeof bits, 0) != sizeof bits) throw SystemError("getrandom", errno);
  return fmt::format("run-{:016x}", bits);
}

// Nobody may listen there once the ranks look, so it is not kept: another program could take it before they do. The
// kernel hands such ports out in no order, which makes that unlikely.
int free_port() { return net::local_address(net::tcp_listen({"127.0.0.1", 0}).get()).port; }

// The store that torch programs ask for: theirs has no secret. Throws InvalidArgument for an address that is none of
// this host's, SystemError if the port is taken.
std::unique_ptr<store::TcpStoreServer> serve_torch(const RunOptions& options) {
  try {
    return std::make_unique<store::TcpStoreServer>(
        store::TcpStoreServerOptions{.listen = {options.master_addr, static_cast<std::uint16_t>(options.master_port)}});
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("--torch-store: {}", error.what()));
  }
}

int complain(int exit_code, std::string_view text) {
  fmt::print(stderr, "lockstep run: {}\n", text);
  return exit_code;
}

void make_log_dir(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw InvalidArgument(fmt::format("--log-dir: can't make the folder {}: {}", folder, errno_text(error.value())));
  }
}

int start(const RunOptions& options) {
  const auto environment = Environment::of_process();
  const auto program = find_program(options.command.front(), environment);
  if (program.path.empty()) return complain(program.exit_code, program.problem);
  const auto count = choose_ranks(options, find_gpus("/proc/driver/nvidia/gpus", "/dev", environment), allowed_cores());
  if (!options.log_dir.empty()) make_log_dir(options.log_dir);

  JobOptions job_options;
  job_options.program = program.path;
  job_options.command = options.command;
  job_options.log_dir = options.log_dir;
  job_options.grace = options.grace;
  Contract& contract = job_options.contract;
  contract.world_size = count.ranks;
  contract.run_id = random_run_id();
  contract.master_addr = options.master_addr;
  contract.torch_store = options.torch_store;
  contract.liveness = options.liveness;
  if (options.timeout) contract.timeout = fmt::format("{}", *options.timeout);

  Console console(STDOUT_FILENO, STDERR_FILENO);
  Signals signals;
  Guardian guardian(contract.run_id);
  LogRelay log;
  const store::TcpStoreServer store;  // a thread: no fork by anybody but Job from here on
  contract.store_address = store.address().to_string();
  std::unique_ptr<store::TcpStoreServer> torch_store;
  if (options.torch_store) {
    torch_store = serve_torch(options);
    contract.master_port = torch_store->address().port;
    console.message(
        fmt::format("--torch-store: torch's protocol at {}, without a secret: whoever reaches it may read, change and "
                    "stop what runs through it",
                    torch_store->address().to_string()));
  } else {
    contract.master_port = options.master_port != 0 ? options.master_port : free_port();
  }
  if (!count.reason.empty()) {
    console.message(fmt::format("{} {} ({})", count.ranks, count.ranks == 1 ? "rank" : "ranks", count.reason));
  }
  try {
    const int code = Job(std::move(job_options), environment, console, signals, guardian, log).run();
    guardian.all_is_well();
    return code;
  } catch (const ExecError& error) {
    const bool wrong_format = error.error_number() == ENOEXEC;
    return complain(
        error.error_number() == ENOENT ? kExitNotFound : kExitNotExecutable,
        fmt::format("{}{}", error.what(), wrong_format ? "; a script needs a first line such as #!/bin/sh" : ""));
  }
}

}  // namespace

int run_command(const RunOptions& options) {
  set_log_label("run");  // for what is logged while there is no console
  try {
    return start(options);
  } catch (const InvalidArgument& error) {
    return complain(kExitUsage, error.what());
  } catch (const Error& error) {
    return complain(kExitInternal, error.what());
  }
}

}  // namespace lockstep::launcher
