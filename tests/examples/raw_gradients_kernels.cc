// SPDX-License-Identifier: Apache-2.0
// The kernels of examples/03_raw_gradients as loops on the threads of the fake CUDA runtime's streams.
#include "examples/03_raw_gradients/kernels.h"

#include "examples/03_raw_gradients/kernel_bodies.h"
#include "lockstep/base/error.h"
#include "tests/fakes/cudart/fake_cuda.h"

namespace {

using lockstep::fake_cuda::Range;

Range floats(const float* data, int count) { return {data, static_cast<std::size_t>(count) * sizeof(float)}; }

template <typename T>
T* there(T* data) {
  return static_cast<T*>(lockstep::fake_cuda::host_address(data));
}
Weights there(const Weights& it) { return {there(it.w1), there(it.b1), there(it.w2), there(it.b2)}; }
Batch there(const Batch& it) { return {there(it.x), there(it.y), it.rows}; }
Activations there(const Activations& it) { return {there(it.hidden), there(it.d_output), there(it.loss)}; }

// Threads 0 to `threads` - 1 of one block.
template <typename Body>
void launch(lockstep::StreamView stream, const char* what, int threads, Body body, const std::vector<Range>& reads,
            const std::vector<Range>& writes) {
  const cudaError_t error = lockstep::fake_cuda::enqueue(
      static_cast<cudaStream_t>(stream.handle), what,
      [threads, body] {
        for (int thread = 0; thread < threads; ++thread) body(thread);
      },
      reads, writes);
  if (error != cudaSuccess) throw lockstep::DeviceError(std::string("the launch of ") + what);
}

}  // namespace

void forward(const Weights& weights, const Batch& batch, const Activations& activations, lockstep::StreamView stream) {
  const Range loss = floats(activations.loss, batch.rows);
  launch(stream, "forward", batch.rows,
         [weights = there(weights), batch = there(batch), to = there(activations)](int row) {
           forward_of_row(weights, batch, to, row);
         },
         {floats(weights.w1, kInputs * kHidden), floats(weights.b1, kHidden), floats(weights.w2, kHidden),
          floats(weights.b2, 1), floats(batch.x, batch.rows * kInputs), floats(batch.y, batch.rows), loss},
         {floats(activations.hidden, batch.rows * kHidden), floats(activations.d_output, batch.rows), loss});
}

void backward_output(const Batch& batch, const Activations& activations, float* d_w2, float* d_b2,
                     lockstep::StreamView stream) {
  launch(stream, "backward_output", kHidden,
         [batch = there(batch), from = there(activations), d_w2 = there(d_w2), d_b2 = there(d_b2)](int h) {
           backward_of_output(batch, from, d_w2, d_b2, h);
         },
         {floats(activations.hidden, batch.rows * kHidden), floats(activations.d_output, batch.rows)},
         {floats(d_w2, kHidden), floats(d_b2, 1)});
}

void backward_hidden(const Weights& weights, const Batch& batch, const Activations& activations, float* d_w1,
                     float* d_b1, lockstep::StreamView stream) {
  launch(stream, "backward_hidden", kHidden,
         [weights = there(weights), batch = there(batch), from = there(activations), d_w1 = there(d_w1),
          d_b1 = there(d_b1)](int h) { backward_of_hidden(weights, batch, from, d_w1, d_b1, h); },
         {floats(weights.w2, kHidden), floats(batch.x, batch.rows * kInputs),
          floats(activations.hidden, batch.rows * kHidden), floats(activations.d_output, batch.rows)},
         {floats(d_w1, kInputs * kHidden), floats(d_b1, kHidden)});
}

void descend(float* weights, const float* gradient, int count, lockstep::StreamView stream) {
  launch(stream, "descend", count,
         [weights = there(weights), gradient = there(gradient)](int i) { weights[i] -= kRate * gradient[i]; },
         {floats(weights, count), floats(gradient, count)}, {floats(weights, count)});
}
