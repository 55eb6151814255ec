// SPDX-License-Identifier: Apache-2.0
// How busy this host's GPUs are, and who has how much of their memory: of NVML, the driver's own library, which is
// loaded when it is asked for. Neither CUDA nor a GPU's context is touched.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace lockstep::probe {

// {"gpus": [{"uuid": "GPU-5f2c...", "use": 0.87, "processes": [{"pid": 4711, "memory_bytes": 123}]}]}, or {"no_gpu":
// "why"}. LOCKSTEP_NVML_LIB names the file to load; without it libnvidia-ml.so.1.
nlohmann::json gpu_use();

}  // namespace lockstep::probe
