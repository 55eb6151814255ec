#include "launcher/shared_gpu.h"

#include <fmt/format.h>

namespace lockstep::launcher {

std::vector<std::pair<std::string, std::string>> shared_gpu_environment(const std::string& run_id, int rank) {
  return {
      {"LOCKSTEP_OVERSUBSCRIBE_GPU", "1"},
      {std::string(kHostId), fmt::format("{}-rank{}", run_id, rank)},
      {"NCCL_NET", "Socket"},
      {"NCCL_SOCKET_IFNAME", "lo"},
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
  };
}

}  // namespace lockstep::launcher
