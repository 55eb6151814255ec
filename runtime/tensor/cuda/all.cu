// SPDX-License-Identifier: Apache-2.0
// All kernels as one source: to read the headers takes nvcc longer than the kernels, once for each kind of GPU.
#include "runtime/tensor/cuda/cuda_kernels.h"
#include "runtime/tensor/cuda/launch.cuh"
// They launch through these.
#include "runtime/tensor/cuda/attention.cu"
#include "runtime/tensor/cuda/dropout.cu"
#include "runtime/tensor/cuda/elementwise.cu"
#include "runtime/tensor/cuda/embedding.cu"
#include "runtime/tensor/cuda/layer_norm.cu"
#include "runtime/tensor/cuda/loss.cu"
#include "runtime/tensor/cuda/optimizer.cu"
#include "runtime/tensor/cuda/product.cu"
#include "runtime/tensor/cuda/rows.cu"

namespace lockstep::cuda {

void DeleteLaunch::operator()(Launch* launch) const { delete launch; }
LaunchPointer make_launch(StreamView stream) { return LaunchPointer(new Launch(stream)); }

}  // namespace lockstep::cuda
