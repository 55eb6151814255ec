// SPDX-License-Identifier: Apache-2.0
// The environment for several ranks on one GPU, for development.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/environment.h"

namespace lockstep::launcher {

inline constexpr std::string_view kHostId = "NCCL_HOSTID";

// Returns the variables of `rank`. NCCL refuses two ranks of one host on one GPU. With its own host identity each rank
// is a host to NCCL, and the ranks communicate over loopback sockets, with the algorithm and protocol that pass the GPU
// from rank to rank least often. NCCL's variables apply to ranks for which the user has not set them
// (is_left_to_user()), except for the host identity, which a site may set for its hosts.
std::vector<std::pair<std::string, std::string>> shared_gpu_environment(const std::string& run_id, int rank);
bool is_left_to_user(std::string_view name);

// Returns a line for the user for each of these variables that is already set to another value, usually by a site or an
// image.
std::vector<std::string> variables_that_win(const Environment& environment);

}  // namespace lockstep::launcher
