// SPDX-License-Identifier: Apache-2.0
// A table of vectors, looked up by index.
#pragma once

#include "lockstep/base/api.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

// indices i64 [...] to [..., channels]. Parameter `weight` [rows, channels], normal with deviation 1 unless said.
class LOCKSTEP_API Embedding : public Module {
 public:
  Embedding(std::int64_t rows, std::int64_t channels, const Init& init = Init::normal(1.0f));
  Tensor forward(const Tensor& indices) override;
  // The first `count` rows for each of `batch` samples: [batch, count, channels]. For learned positions.
  Tensor first_rows(std::int64_t batch, std::int64_t count) const;

  Tensor weight() const;

 private:
  Tensor weight_;
};

}  // namespace lockstep::nn
