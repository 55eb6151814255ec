// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/no_device.h"

#include <fmt/format.h>

#include "runtime/cuda/check.h"

namespace lockstep::cuda {

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

std::string why_no_device(cudaError_t error, int driver_version, const std::optional<std::string>& visible_devices) {
  switch (error) {
    case cudaErrorInsufficientDriver:
    case cudaErrorCallRequiresNewerDriver:
      if (driver_version == 0) {
        return "there is no NVIDIA driver on this machine (no libcuda.so.1); install it, or in a container pass the "
               "GPUs: docker run --gpus all";
      }
      return fmt::format(
          "the NVIDIA driver is made for CUDA {}, and this build needs {}; install a newer driver, or build lockstep "
          "with an older CUDA toolkit",
          version_text(driver_version), version_text(CUDART_VERSION));
    case cudaErrorSystemNotReady:
      return "the NVSwitches that connect the GPUs are not set up, which CUDA waits for (cudaErrorSystemNotReady, "
             "802); "
             "start nvidia-fabricmanager of the driver's own version on the host: systemctl status "
             "nvidia-fabricmanager";
    case cudaErrorSystemDriverMismatch:
      return "the NVIDIA driver's library and its kernel module are of two versions (cudaErrorSystemDriverMismatch, "
             "803); reboot after an update of the driver, and in a container take out a libcuda.so.1 that the image "
             "brings (LD_LIBRARY_PATH, a cuda-compat package)";
    case cudaErrorDevicesUnavailable:
      return "the GPUs are busy or may not be used (cudaErrorDevicesUnavailable, 46): in exclusive-process mode "
             "another "
             "process has each of them; see nvidia-smi -q -d COMPUTE for the mode and nvidia-smi for who runs there";
    case cudaErrorStubLibrary:
      return "the libcuda.so.1 that was found is the toolkit's stub for the linker; take its folder (lib64/stubs) out "
             "of "
             "LD_LIBRARY_PATH";
    case cudaSuccess:
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
      if (visible_devices) {
        return fmt::format("CUDA_VISIBLE_DEVICES='{}' leaves no GPU of this machine; correct or unset it",
                           *visible_devices);
      }
      return "the NVIDIA driver shows no GPU; look at nvidia-smi, and in a container pass the GPUs: docker run "
             "--gpus all";
    default: return fmt::format("CUDA does not start: {}; look at nvidia-smi and the kernel's log", error_text(error));
  }
}

}  // namespace lockstep::cuda
