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
};

// Of "gpt", 3.3 M parameters, and "gpt2", the smallest GPT-2 with a head of its own, 162 M.
inline std::optional<GptSize> gpt_size(std::string_view name) {
  if (name == "gpt") return GptSize{.tokens = 128, .length = 128, .rows = 8, .width = 256, .layers = 4, .heads = 4};
  if (name == "gpt2") {
    return GptSize{.tokens = 50257, .length = 512, .rows = 8, .width = 768, .layers = 12, .heads = 12};
  }
  return std::nullopt;
}

}  // namespace lockstep::benchmark
