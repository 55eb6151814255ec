// SPDX-License-Identifier: Apache-2.0
#include "lockstep/nn/module.h"

#include <cmath>
#include <vector>

namespace lockstep::nn {

Init Init::kaiming_uniform(std::int64_t fan_in) {
  return uniform(fan_in > 0 ? static_cast<float>(1.0 / std::sqrt(static_cast<double>(fan_in))) : 0.0f);
}

void initialize(const Tensor& tensor, const Init& init, Generator generator) {
  if (init.kind == Init::Kind::constant) {
    tensor.fill(init.value);
    return;
  }
  // Drawn on the host, so that every device begins with the same numbers.
  std::vector<float> values(static_cast<std::size_t>(tensor.count()));
  for (float& value : values) {
    value = init.kind == Init::Kind::uniform ? init.value * (2.0f * generator.uniform() - 1.0f)
                                             : init.value * generator.normal();
  }
  tensor.copy_from(Tensor::of(tensor.shape(), values));
}

}  // namespace lockstep::nn
