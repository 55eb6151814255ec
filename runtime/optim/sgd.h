// Stochastic gradient descent, with torch.optim.SGD's momentum.
#pragma once

#include "runtime/optim/optimizer.h"

namespace lockstep::optim {

struct SgdOptions {
  double lr = 1e-3;
  double momentum = 0;   // [0, 1)
  double dampening = 0;  // not with nesterov
  double weight_decay = 0;
  bool nesterov = false;  // needs a momentum
};

// v = momentum v + (1 - dampening) (g + weight_decay w), the first time v = g + weight_decay w; w -= lr v.
class SGD final : public Optimizer {
 public:
  explicit SGD(std::vector<Tensor> parameters, const SgdOptions& options = {});
  explicit SGD(std::vector<ParameterGroup> groups, const SgdOptions& options = {});
  std::vector<NamedState> state() const override;

 private:
  void update(std::size_t index, const Tensor& parameter, const Tensor& gradient) override;

  SgdOptions options_;
  std::vector<Tensor> velocity_;  // empty without momentum
};

}  // namespace lockstep::optim
