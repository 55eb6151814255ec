// SPDX-License-Identifier: Apache-2.0
// Linear and embedding layers whose weight's gradient is computed in its place in the Reducer's memory, or with one
// rank in memory that stays. With torch's own operators a gradient is computed in memory of its own, and copied there.
//
//   namespace ls = lockstep::libtorch;
//   at::Tensor forward(at::Tensor x) {
//     x = at::relu(ls::linear(x, first->weight, first->bias));   // in place of first->forward(x)
//
// Outputs and gradients have the bits of at::linear and at::embedding. A gradient is computed in its place if
//   - a DistributedDataParallel on CPUs trains the weight, with DdpOptions::overlap;
//   - the weight is a parameter itself, or parameter.t(), of float32 or float64, whose rows are contiguous; not a cast
//     (Autocast) or another view;
//   - no hook was registered on the weight, and backward() computes the gradients of all parameters;
//   - the micro-batch is the first of its step, or a fixed micro-batch; and with one rank .grad is undefined or zeros.
// Otherwise, and for the second use of a weight in one loss (tied weights), the gradient is copied, as with torch's
// operators.
//
// If the layer's input and the gradient of its output show that no element of the weight's gradient can be NaN or
// infinite, that gradient is not read to find out (DdpOptions::not_finite); also with one rank.
//
// Threads: any. Failure: what at::linear and at::embedding throw.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "lockstep/base/api.h"

namespace lockstep::libtorch {

// As at::linear. input: [..., in]; weight: [out, in]; bias: [out], or undefined. Returns [..., out].
LOCKSTEP_API at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias = {});

// As at::embedding(weight, indices). weight: [rows, width]; indices: int64 or int32, of any shape, in [0, rows).
// Returns [indices' shape, width].
LOCKSTEP_API at::Tensor embedding(const at::Tensor& weight, const at::Tensor& indices);

// torch::nn::Linear with linear() as its forward. clone() returns a torch::nn::Linear.
class LinearImpl : public ::torch::nn::LinearImpl {
 public:
  using ::torch::nn::LinearImpl::LinearImpl;
  at::Tensor forward(const at::Tensor& input) { return linear(input, weight, bias); }
};
TORCH_MODULE(Linear);

}  // namespace lockstep::libtorch
