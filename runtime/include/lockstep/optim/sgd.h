// SPDX-License-Identifier: Apache-2.0
// Stochastic gradient descent, with torch.optim.SGD's momentum (without dampening).
#pragma once

#include "lockstep/base/api.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

struct SgdOptions {
  double lr = 1e-3;         // 0 or more, finite; of the first steps: set_learning_rate() changes it
  double momentum = 0;      // [0, 1)
  double weight_decay = 0;  // 0 or more
  bool nesterov = false;    // needs a momentum
};

// v = momentum v + (g + weight_decay w), from zeros; w -= lr v, or with nesterov lr (g + weight_decay w + momentum v).
class LOCKSTEP_API SGD final : public Optimizer {
 public:
  explicit SGD(std::vector<Tensor> parameters, const SgdOptions& options = {});
  explicit SGD(std::vector<ParameterGroup> groups, const SgdOptions& options = {});
  std::string name() const override { return "SGD"; }
  std::vector<std::pair<std::string, double>> settings() const override;
  std::vector<NamedState> state() const override;

 private:
  void update(std::size_t index, const Tensor& parameter, const Tensor& gradient) override;

  SgdOptions options_;
  std::vector<Tensor> velocity_;  // empty without momentum
};

}  // namespace lockstep::optim
