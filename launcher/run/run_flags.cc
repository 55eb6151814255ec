// SPDX-License-Identifier: Apache-2.0
#include "launcher/run/run_flags.h"

#include <fmt/format.h>

#include "launcher/flag_values.h"
#include "launcher/run/gpu_choice.h"
#include "lockstep/base/error.h"
#include "runtime/base/exit_code.h"
#include "runtime/membership/membership_table.h"
#include "runtime/net/address.h"

namespace lockstep::launcher {
namespace {

bool is_torch_nproc_word(std::string_view text) { return text == "auto" || text == "cpu" || text == "gpu"; }

std::string ranks_problem(std::string_view flag, std::string_view text) {
  if (parse_count(text, kMaxRanks)) return {};
  if (flag == "-n" && text == "p") return "-np is a flag of mpirun; here it is -n";
  return fmt::format("{} {}: give a number of ranks from 1 to {}{}", flag, text, kMaxRanks,
                     flag == "-n" ? "" : ", or auto, cpu or gpu");
}

}  // namespace

std::string interpret(const RawRunFlags& raw, RunOptions& options) {
  if (!is_torch_nproc_word(options.nproc_per_node)) {
    if (auto problem = ranks_problem("--nproc-per-node", options.nproc_per_node); !problem.empty()) return problem;
  }
  if (!raw.ranks.empty()) {
    if (auto problem = ranks_problem("-n", raw.ranks); !problem.empty()) return problem;
    options.ranks = static_cast<int>(*parse_count(raw.ranks, kMaxRanks));
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
    const auto grace = parse_seconds(raw.grace);
    if (!grace) return fmt::format("--grace {}: give seconds from 0 to 86400, such as 0.7", raw.grace);
    options.grace = *grace;
  }
  if (!raw.timeout.empty()) {
    const auto seconds = parse_count(raw.timeout, 30 * 86400);
    if (!seconds) return fmt::format("--timeout {}: give whole seconds, at least 1 and at most 30 days", raw.timeout);
    options.timeout = static_cast<int>(*seconds);
  }
  try {
    options.master_addr = net::parse_host(options.master_addr);
  } catch (const InvalidArgument& error) {
    return fmt::format("--master-addr: {}", error.what());
  }
  if (!raw.master_port.empty()) {
    const auto port = parse_port(raw.master_port);
    if (!port)
      return fmt::format("--master-port {}: give a port from 1 to 65535, or 0 for a free one", raw.master_port);
    options.master_port = *port;
  }
  if (raw.devices) {
    const auto devices = parse_devices(*raw.devices);
    if (!devices) {
      return fmt::format("--devices {}: give GPUs by index, such as 0,3, or by UUID, as nvidia-smi -L shows them",
                         raw.devices->empty() ? "''" : *raw.devices);
    }
    options.devices = *devices;
  }
  if (!raw.hang_timeout.empty()) {
    const auto seconds = parse_seconds(raw.hang_timeout);
    if (raw.hang_timeout != "off" && (!seconds || *seconds < membership::kLeastHang)) {
      return fmt::format("--hang-timeout {}: give seconds from {} to 86400, or off", raw.hang_timeout,
                         std::chrono::duration<double>(membership::kLeastHang).count());
    }
    options.hang_timeout = raw.hang_timeout;
  }
  if (!raw.stop_timeout.empty()) {
    const auto seconds = parse_seconds(raw.stop_timeout);
    if (!seconds || seconds->count() == 0) {
      return fmt::format("--stop-timeout {}: give seconds above 0 and at most 86400", raw.stop_timeout);
    }
    options.stop_timeout = raw.stop_timeout;
  }
  if (!raw.requeue_exit_code.empty()) {
    const auto code = parse_count(raw.requeue_exit_code, kMostRequeueCode);
    if (!code) {
      return fmt::format("--requeue-exit-code {}: give a code from 1 to {}", raw.requeue_exit_code, kMostRequeueCode);
    }
    options.requeue_exit_code = static_cast<int>(*code);
  }
  if (!raw.liveness.empty()) {
    if (raw.liveness != "on" && raw.liveness != "off") {
      return fmt::format("--liveness {}: give on or off", raw.liveness);
    }
    options.liveness = raw.liveness == "on";
  }
  return {};
}

}  // namespace lockstep::launcher
