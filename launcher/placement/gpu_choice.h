// SPDX-License-Identifier: Apache-2.0
// The GPUs of the ranks, from --devices, as a value of CUDA_VISIBLE_DEVICES. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lockstep::launcher {

// A GPU that this process sees, by its index. `uuid` is empty if no driver could be asked.
struct SeenGpu {
  std::string uuid;
  std::string name;
};

// Returns the value for the ranks. Indices count the GPUs that this process sees, as CUDA numbers them: where
// CUDA_VISIBLE_DEVICES is set already (`inherited`), index i is its i-th entry. UUIDs may be abbreviated as long as
// they mean only one GPU. Throws InvalidArgument for a GPU that is not on this host, or is listed twice.
std::string visible_devices_of_ranks(const std::vector<std::string>& devices, const std::vector<SeenGpu>& seen,
                                     const std::optional<std::string>& inherited);

// Throws InvalidArgument, with the ranks that would share a GPU, if there are more ranks than GPUs and not
// `oversubscribe`.
void require_a_gpu_each(int ranks, const std::vector<std::string>& devices, bool oversubscribe);

}  // namespace lockstep::launcher
