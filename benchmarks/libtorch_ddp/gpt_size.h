// SPDX-License-Identifier: Apache-2.0
// The sizes of the GPTs that are timed, the same as those of benchmarks/peers/torch_ddp.py.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace lockstep::benchmark {

struct GptSize {
  std::int64_t tokens = 0;  // in the alphabet
  std::int64_t length = 0;  // tokens in a row
  std::int64_t rows = 0;    // of a rank's batch
  std::int64_t width = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  bool in_bfloat16 = false;  // autocast, with a tied head: LibTorch's alone
};

// "gpt" has 3.3 M parameters; "gpt2" is the smallest GPT-2 with a head of its own, 162 M; those in bfloat16 have 124 M.
inline std::optional<GptSize> gpt_size(std::string_view name) {
  if (name == "gpt") return GptSize{.tokens = 128, .length = 128, .rows = 8, .width = 256, .layers = 4, .heads = 4};
  if (name == "gpt2") {
    return GptSize{.tokens = 50257, .length = 512, .rows = 8, .width = 768, .layers = 12, .heads = 12};
  }
  GptSize bf16{
      .tokens = 50304, .length = 1024, .rows = 16, .width = 768, .layers = 12, .heads = 12, .in_bfloat16 = true};
  if (name == "gpt2-bf16") return bf16;
  bf16.length = 512, bf16.rows = 8;
  if (name == "gpt2-bf16-8x512") return bf16;
  if (name == "gpt2-tiny-bf16") return GptSize{256, 64, 4, 64, 2, 2, true};
  return std::nullopt;
}

}  // namespace lockstep::benchmark
