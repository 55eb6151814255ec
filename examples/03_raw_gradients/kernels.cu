// SPDX-License-Identifier: Apache-2.0
// One block is plenty for a network of this size; what matters here is the order of streams, not speed.
#include "kernels.h"

#include <cuda_runtime_api.h>

#include <string>

#include "kernel_bodies.h"
#include <lockstep/base/error.h>

namespace {

__global__ void forward_kernel(Weights weights, Batch batch, Activations to) {
  if (static_cast<int>(threadIdx.x) < batch.rows) forward_of_row(weights, batch, to, threadIdx.x);
}
__global__ void backward_output_kernel(Batch batch, Activations from, float* d_w2, float* d_b2) {
  backward_of_output(batch, from, d_w2, d_b2, threadIdx.x);
}
__global__ void backward_hidden_kernel(Weights weights, Batch batch, Activations from, float* d_w1, float* d_b1) {
  backward_of_hidden(weights, batch, from, d_w1, d_b1, threadIdx.x);
}
__global__ void descend_kernel(float* weights, const float* gradient, int count) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) weights[i] -= kRate * gradient[i];
}

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw lockstep::DeviceError(std::string("03_raw_gradients: ") + what + ": " + cudaGetErrorString(error) + " (" +
                              cudaGetErrorName(error) + ")");
}

cudaStream_t on_its_device(lockstep::StreamView stream) {
  check(cudaSetDevice(stream.device.index), "cudaSetDevice");
  return static_cast<cudaStream_t>(stream.handle);
}

}  // namespace

void forward(const Weights& weights, const Batch& batch, const Activations& activations, lockstep::StreamView stream) {
  forward_kernel<<<1, kBatch, 0, on_its_device(stream)>>>(weights, batch, activations);
  check(cudaGetLastError(), "the launch of forward");
}

void backward_output(const Batch& batch, const Activations& activations, float* d_w2, float* d_b2,
                     lockstep::StreamView stream) {
  backward_output_kernel<<<1, kHidden, 0, on_its_device(stream)>>>(batch, activations, d_w2, d_b2);
  check(cudaGetLastError(), "the launch of backward_output");
}

void backward_hidden(const Weights& weights, const Batch& batch, const Activations& activations, float* d_w1,
                     float* d_b1, lockstep::StreamView stream) {
  backward_hidden_kernel<<<1, kHidden, 0, on_its_device(stream)>>>(weights, batch, activations, d_w1, d_b1);
  check(cudaGetLastError(), "the launch of backward_hidden");
}

void descend(float* weights, const float* gradient, int count, lockstep::StreamView stream) {
  descend_kernel<<<1, kBatch, 0, on_its_device(stream)>>>(weights, gradient, count);
  check(cudaGetLastError(), "the launch of descend");
}
