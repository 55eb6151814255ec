// SPDX-License-Identifier: Apache-2.0
// The few functions of NVML (nvml.h of driver 510 and newer) that the probe calls, with their types.
#pragma once

namespace lockstep::probe::nvml {

using Device = struct nvmlDevice_st*;
enum Result : int { kSuccess = 0, kInsufficientSize = 7 };

struct Utilization {
  unsigned gpu = 0;  // percent of the last sampling period in which a kernel ran
  unsigned memory = 0;
};
struct ProcessInfo {
  unsigned pid = 0;
  unsigned long long used_memory = 0;  // bytes; all ones: not available
  unsigned gpu_instance = 0;
  unsigned compute_instance = 0;
};

inline constexpr unsigned kUuidBytes = 96;
inline constexpr unsigned long long kNotAvailable = ~0ULL;

using Init = int (*)();
using ErrorString = const char* (*)(int);
using DeviceGetCount = int (*)(unsigned*);
using DeviceGetHandleByIndex = int (*)(unsigned, Device*);
using DeviceGetUuid = int (*)(Device, char*, unsigned);
using DeviceGetUtilizationRates = int (*)(Device, Utilization*);
// `count` is the room in the list, and on return the number of processes.
using DeviceGetComputeRunningProcesses = int (*)(Device, unsigned* count, ProcessInfo*);

}  // namespace lockstep::probe::nvml
