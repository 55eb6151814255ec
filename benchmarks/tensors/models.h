// SPDX-License-Identifier: Apache-2.0
// The models of benchmarks/libtorch_ddp as our own modules.
#pragma once

#include <lockstep/lockstep.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::benchmark {

// A model, this rank's batch and its loss.
struct Problem {
  std::unique_ptr<nn::Module> model;
  Tensor x;
  Tensor y;
  std::vector<std::int64_t> ids;  // of the rows
  std::function<Tensor(const Tensor& output, const Tensor& y)> loss;
  // Behind its DistributedDataParallel, if there is one.
  std::function<std::unique_ptr<optim::Optimizer>(const nn::Module& model)> make_optimizer;
};

// Throws std::invalid_argument with the names there are.
Problem make_problem(const std::string& name, int rank, DeviceId device);

}  // namespace lockstep::benchmark
