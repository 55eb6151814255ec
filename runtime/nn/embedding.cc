// SPDX-License-Identifier: Apache-2.0
#include "lockstep/nn/nn.h"

namespace lockstep::nn {

Embedding::Embedding(std::int64_t rows, std::int64_t channels, const Init& init)
    : weight_(register_parameter("weight", {rows, channels}, init)) {}

Tensor Embedding::forward(const Tensor& indices) { return embedding(weight(), indices); }

Tensor Embedding::first_rows(std::int64_t batch, std::int64_t count) const {
  return repeat(rows(weight(), 0, count), batch);
}

Tensor Embedding::weight() const {
  ensure_initialized();
  return weight_;
}

}  // namespace lockstep::nn
