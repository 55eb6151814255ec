// SPDX-License-Identifier: Apache-2.0
#include "lockstep/nn/nn.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::nn {

Dropout::Dropout(float p) : p_(p) {
  if (!(p >= 0 && p < 1)) throw InvalidArgument(fmt::format("Dropout: probability {} is not in [0, 1)", p));
}

Tensor Dropout::forward(const Tensor& x) { return is_training() && p_ > 0 ? dropout(x, p_, random_source()) : x; }

}  // namespace lockstep::nn
