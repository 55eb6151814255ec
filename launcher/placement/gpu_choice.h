// SPDX-License-Identifier: Apache-2.0
// Which GPUs the ranks get: --devices, as a value of CUDA_VISIBLE_DEVICES. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lockstep::launcher {

// A GPU that this process sees, by its index. Without a uuid where nobody could ask a driver.
struct SeenGpu {
  std::string uuid;
  std::string name;
};

// The value for the ranks. Indices count the GPUs that this process sees, as CUDA numbers them: where
// CUDA_VISIBLE_DEVICES is set already (`inherited`), index i is its i-th entry. UUIDs may be cut short while they mean
// one GPU only. Throws InvalidArgument for one that isn't here, or comes twice.
std::string visible_devices_of_ranks(const std::vector<std::string>& devices, const std::vector<SeenGpu>& seen,
                                     const std::optional<std::string>& inherited);

// More ranks than GPUs are refused with InvalidArgument, with who would share, unless they shall.
void require_a_gpu_each(int ranks, const std::vector<std::string>& devices, bool oversubscribe);

}  // namespace lockstep::launcher
