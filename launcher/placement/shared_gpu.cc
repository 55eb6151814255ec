// SPDX-License-Identifier: Apache-2.0
#include "launcher/placement/shared_gpu.h"

#include <fmt/format.h>

namespace lockstep::launcher {

std::vector<std::pair<std::string, std::string>> shared_gpu_environment(const std::string& run_id, int rank) {
  return {
      {"LOCKSTEP_OVERSUBSCRIBE_GPU", "1"},
      {std::string(kHostId), fmt::format("{}-rank{}", run_id, rank)},
      {"NCCL_NET", "Socket"},
      {"NCCL_SOCKET_IFNAME", "=lo"},  // without "=" every interface whose name begins with "lo"
      {"NCCL_IB_DISABLE", "1"},
      {"NCCL_P2P_DISABLE", "1"},
      {"NCCL_SHM_DISABLE", "1"},
      {"NCCL_NVLS_ENABLE", "0"},
      {"NCCL_MNNVL_ENABLE", "0"},
      {"NCCL_ALGO", "Ring"},
      {"NCCL_PROTO", "Simple"},
      {"NCCL_MAX_CTAS", "2"},
      {"NCCL_NET_PLUGIN", "none"},
      {"NCCL_TUNER_PLUGIN", "none"},
      {"NCCL_RAS_ENABLE", "0"},  // all ranks of the host would listen on its one port
  };
}

bool is_left_to_user(std::string_view name) { return name.starts_with("NCCL_") && name != kHostId; }

std::vector<std::string> variables_that_win(const Environment& environment) {
  std::vector<std::string> lines;
  for (const auto& [name, wanted] : shared_gpu_environment("", 0)) {
    const auto set = environment.get(name);
    if (!set || *set == wanted || !is_left_to_user(name)) continue;
    lines.push_back(
        fmt::format("--oversubscribe-gpu: {}='{}' is set and wins over '{}', with which ranks on one GPU are known to "
                    "work; unset the variable unless you want its value",
                    name, *set, wanted));
  }
  return lines;
}

}  // namespace lockstep::launcher
