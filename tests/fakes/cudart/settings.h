// SPDX-License-Identifier: Apache-2.0
// What the environment says of the fake devices: fake_cuda.h has the variables.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::fake_cuda {

struct Settings {
  std::vector<int> visible;        // physical index of each device that the process sees
  cudaError_t none = cudaSuccess;  // why it sees none
  std::size_t device_bytes = 0;    // of each
  std::uint64_t seed = 0;
  int multiprocessors = 0;  // of each
  std::string rules;
};

// Ends the process with a line on stderr if a variable makes no sense: a test that sets it wrong must not pass.
Settings settings_of_process();

}  // namespace lockstep::fake_cuda
