// SPDX-License-Identifier: Apache-2.0
// The logits of examples/05_libtorch_gpt2 from weights of its size "tiny": gpt2_logits WEIGHTS PREFIX TOKENS LOGITS,
// all of them safetensors files but PREFIX, which stands before each name in WEIGHTS.
#include <lockstep/libtorch.h>
#include <torch/torch.h>

#include <cstdio>
#include <string>

#include "examples/05_libtorch_gpt2/gpt2.h"

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: %s WEIGHTS PREFIX TOKENS LOGITS\n", argv[0]);
    return 2;
  }
  const std::string prefix = argv[2];
  torch::set_num_threads(1);
  Gpt2 model(gpt2_config("tiny"));
  lockstep::libtorch::load_weights(
      argv[1], model,
      {.name_in_file = [&](const std::string& name) { return prefix + name; }, .allow_unexpected = true});
  const lockstep::checkpoint::SafetensorsFile file(argv[3]);
  const auto& entry = file.find("tokens");
  const torch::Tensor tokens = torch::empty(entry.shape, torch::kLong);
  file.read(entry, {static_cast<std::byte*>(tokens.data_ptr()), tokens.nbytes()});
  const torch::NoGradGuard no_grad;
  const torch::Tensor logits = model(tokens).contiguous();
  lockstep::checkpoint::write_safetensors(
      argv[4], {{{.name = "logits",
                  .dtype = lockstep::DType::f32,
                  .shape = logits.sizes().vec(),
                  .bytes = {static_cast<const std::byte*>(logits.data_ptr()), logits.nbytes()}}}});
}
