// SPDX-License-Identifier: Apache-2.0
// y = x W + b.
#pragma once

#include <optional>

#include "lockstep/base/api.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

struct LinearOptions {
  bool bias = true;
  // Initialises the weight; default kaiming_uniform(in). The bias begins uniform with bound 1 / sqrt(in), or as zeros
  // if `init` is given.
  std::optional<Init> init = std::nullopt;
};

// x [..., in] to [..., out]. Parameters `weight` [in, out] (PyTorch's, transposed: see autograd/ops.h) and `bias`
// [out]. In files the weight is PyTorch's, [out, in].
class LOCKSTEP_API Linear : public Module {
 public:
  Linear(std::int64_t in, std::int64_t out, const LinearOptions& options = {});
  Tensor forward(const Tensor& x) override;

  Tensor weight() const;
  // Undefined without one.
  Tensor bias() const;

 private:
  Tensor weight_;
  Tensor bias_;
};

}  // namespace lockstep::nn
