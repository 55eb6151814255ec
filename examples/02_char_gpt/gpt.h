// SPDX-License-Identifier: Apache-2.0
// The model: a decoder-only transformer over characters, GPT-2's layout.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <lockstep/nn/nn.h>

namespace char_gpt {

struct GptOptions {
  std::int64_t vocabulary = 0;  // tokens, the unknown one included
  std::int64_t context = 64;    // longest sequence
  std::int64_t layers = 4;
  std::int64_t heads = 4;
  std::int64_t channels = 144;  // a multiple of heads
  float dropout = 0.1f;
};

// Tokens [B, T], int64, T at most the context, to logits [B, T, vocabulary].
class Gpt : public lockstep::nn::Module {
 public:
  explicit Gpt(const GptOptions& options);
  lockstep::Tensor forward(const lockstep::Tensor& tokens) override;
  const GptOptions& options() const { return options_; }

 private:
  GptOptions options_;
  lockstep::nn::Embedding token_;
  lockstep::nn::Embedding position_;
  lockstep::nn::Dropout dropout_;
  std::vector<lockstep::nn::TransformerBlock> blocks_;
  lockstep::nn::LayerNorm norm_;
  lockstep::nn::Linear head_;
};

// The sizes as text, to be saved beside the weights, so that a fresh process can build the model; and back.
// InvalidArgument names what is missing or no number.
std::map<std::string, std::string> to_metadata(const GptOptions& options);
GptOptions from_metadata(const std::map<std::string, std::string>& metadata);

}  // namespace char_gpt
