// SPDX-License-Identifier: Apache-2.0
// The models that are timed, the same as those of benchmarks/peers/torch_ddp.py.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>

namespace lockstep::benchmark {

struct Model : ::torch::nn::Module {
  virtual at::Tensor forward(const at::Tensor& x) = 0;

  // By lockstep's linear() if `in_place`, else by torch's.
  at::Tensor linear(const ::torch::nn::LinearImpl& layer, const at::Tensor& x) const;
  bool in_place = false;
};

// A model, this rank's batch, its loss and its optimizer.
struct Problem {
  std::shared_ptr<Model> model;
  at::Tensor x;
  at::Tensor y;
  std::function<at::Tensor(const at::Tensor& output, const at::Tensor& y)> loss;
  std::unique_ptr<::torch::optim::Optimizer> optimizer;
  bool in_bfloat16 = false;  // forward and loss under autocast, and gradients set to none before them
};

// `name` is one of run_libtorch_ddp's models. The same weights in each call; another batch on each rank, on its device.
// std::invalid_argument for another name.
Problem make_problem(const std::string& name, int rank, at::Device device);

}  // namespace lockstep::benchmark
