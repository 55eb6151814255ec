// SPDX-License-Identifier: Apache-2.0
// The utilization of this host's GPUs and the memory that each process has on them, from NVML, the driver's own
// library, which is loaded on demand. The query uses neither CUDA nor a GPU context.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace lockstep::probe {

// Returns {"gpus": [{"uuid": "GPU-5f2c...", "use": 0.87, "processes": [{"pid": 4711, "memory_bytes": 123}]}]}, or
// {"no_gpu": "why"}. LOCKSTEP_NVML_LIB names the file to load; the default is libnvidia-ml.so.1.
nlohmann::json gpu_use();

}  // namespace lockstep::probe
