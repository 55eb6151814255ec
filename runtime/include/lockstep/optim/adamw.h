// SPDX-License-Identifier: Apache-2.0
// AdamW: Adam with decoupled weight decay. Loshchilov & Hutter, arXiv:1711.05101.
#pragma once

#include "lockstep/base/api.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep::optim {

struct AdamWOptions {
  double lr = 1e-3;            // 0 or more, finite; of the first steps: set_learning_rate() changes it
  double beta1 = 0.9;          // [0, 1)
  double beta2 = 0.999;        // [0, 1)
  double epsilon = 1e-8;       // above 0
  double weight_decay = 1e-2;  // 0 or more
};

// As torch.optim.AdamW: w -= lr weight_decay w, then w -= lr m^ / (sqrt(v^) + epsilon), m^ and v^ bias-corrected by the
// steps that this parameter took: one that had no gradient at first, frozen and thawed later, begins as a new one does.
class LOCKSTEP_API AdamW final : public Optimizer {
 public:
  explicit AdamW(std::vector<Tensor> parameters, const AdamWOptions& options = {});
  // Groups bring their own weight decay; the option's is not used.
  explicit AdamW(std::vector<ParameterGroup> groups, const AdamWOptions& options = {});
  std::string name() const override { return "AdamW"; }
  std::vector<std::pair<std::string, double>> settings() const override;
  std::vector<NamedState> state() const override;

 private:
  void update(std::size_t index, const Tensor& parameter, const Tensor& gradient) override;

  AdamWOptions options_;
  std::vector<Tensor> steps_taken_;  // by each parameter: i64 [1], on the host
  std::vector<Tensor> moment1_;
  std::vector<Tensor> moment2_;
};

}  // namespace lockstep::optim
