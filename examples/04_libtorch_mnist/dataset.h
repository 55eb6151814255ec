// SPDX-License-Identifier: Apache-2.0
// Digits as a dataset of torch::data.
#pragma once

#include <torch/torch.h>

#include <string>

#include "examples/common/digits/digits.h"

// MNIST's four files in `folder`; rendered digits if it is empty.
class Digits : public torch::data::datasets::Dataset<Digits> {
 public:
  Digits(const std::string& folder, bool is_train) {
    const std::string part = folder + (is_train ? "/train" : "/t10k");
    images_ = folder.empty() ? digits::render(is_train ? 6000 : 1000, is_train ? 1 : 2)
                             : digits::read_idx(part + "-images-idx3-ubyte", part + "-labels-idx1-ubyte");
  }
  torch::data::Example<> get(size_t index) override {
    constexpr size_t kPixels = size_t{digits::kSide} * digits::kSide;
    const torch::Tensor image =
        torch::from_blob(images_.pixels.data() + index * kPixels, {1, digits::kSide, digits::kSide}, torch::kByte);
    return {image.to(torch::kFloat).div_(255), torch::tensor(static_cast<int64_t>(images_.labels[index]))};
  }
  torch::optional<size_t> size() const override { return images_.labels.size(); }

 private:
  digits::Images images_;
};
