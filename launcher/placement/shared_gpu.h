// SPDX-License-Identifier: Apache-2.0
// Several ranks on one GPU, for development: what they need in their environment.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/environment.h"

namespace lockstep::launcher {

inline constexpr std::string_view kHostId = "NCCL_HOSTID";

// NCCL refuses two ranks of one host on one GPU. With a host identity of its own each rank is a host by itself, and
// they talk over loopback sockets, by the algorithm and protocol that pass the GPU from rank to rank least often.
// NCCL's variables are for ranks where the user has not set them (is_left_to_user()); but for that identity, which a
// site may set for its hosts.
std::vector<std::pair<std::string, std::string>> shared_gpu_environment(const std::string& run_id, int rank);
bool is_left_to_user(std::string_view name);

// A line for the user for each of these variables that is set already, to another value: a site's or an image's,
// mostly.
std::vector<std::string> variables_that_win(const Environment& environment);

}  // namespace lockstep::launcher
