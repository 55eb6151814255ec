// SPDX-License-Identifier: Apache-2.0
// In place of on_gpu.cc and kernels.cu, where there is no CUDA toolkit.
#include <lockstep/base/error.h>
#include "on_gpu.h"

int train_on_gpu(const std::shared_ptr<lockstep::ProcessGroup>&, unsigned, lockstep::Shard) {
  throw lockstep::BackendUnavailable(
      "03_raw_gradients: its kernels were not built; install the CUDA toolkit (12.4 or newer, with nvcc) and configure "
      "again with -DLOCKSTEP_CUDA=ON");
}
