// SPDX-License-Identifier: Apache-2.0
// The command line.
#pragma once

#include <fmt/format.h>
#include <lockstep/libtorch.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <string>
#include <vector>

template <typename... Args>
void require(bool is_so, fmt::format_string<Args...> otherwise, Args&&... args) {
  if (!is_so) throw lockstep::InvalidArgument(fmt::format(otherwise, std::forward<Args>(args)...));
}

struct Flags {
  std::vector<std::string> data = {"/usr/share/common-licenses/GPL-3"}, validation;
  std::string size = "tiny", weights, out, dtype = "auto", snapshot_dir;
  int64_t length = 0, rows = 8, batch_tokens = 1024, steps = 300, warmup = 20, log_every = 10;
  int64_t eval_every = 100, sample = 200, top_k = 40, snapshot_every = 100;
  uint64_t seed = 1;
  double lr = 3e-3, temperature = 0.8, peak_tflops = 0;

  Flags(int argc, char** argv) {
    CLI::App app("Trains GPT-2 on token files or a text, on one or more processes.", "05_libtorch_gpt2");
    const auto from = [](int64_t least) { return CLI::Range(least, int64_t{1} << 40).description(""); };
    const auto above_zero = CLI::Range(1e-9, 1e9).description("");
    const auto add = [&](const char* name, auto& value, const char* help, const CLI::Validator& check = {}) {
      app.add_option(name, value, help)->check(check)->capture_default_str();
    };
    add("--data", data, "llm.c's token files for GPT-2, or texts, whose bytes are the tokens");
    add("--validation", validation, "The same to validate with; without it, the last tenth of the data");
    add("--size", size, "gpt2 (124M parameters), gpt2-medium (355M), gpt2-large (774M), gpt2-xl (1558M), or tiny");
    add("--weights", weights, "Start from GPT-2's weights in this safetensors file, as Hugging Face has them");
    add("--out", out, "Write the weights to this safetensors file");
    add("--dtype", dtype, "Of matrix products; auto is bf16 on a GPU", CLI::IsMember({"auto", "float32", "bf16"}));
    add("--length", length, "Tokens per row; 0 is the model's context", from(0));
    add("--rows", rows, "Rows per forward and backward of a rank: as many as its memory holds", from(1));
    add("--batch-tokens", batch_tokens, "Tokens per step, of all ranks together", from(1));
    add("--steps", steps, "Optimizer steps; with 0 it validates and samples", from(0));
    add("--lr", lr, "Learning rate after the warm-up, which falls to a tenth", above_zero);
    add("--warmup", warmup, "Steps of warm-up", from(0));
    add("--seed", seed, "Seed of the weights, of the order of rows and of samples", from(0));
    add("--log-every", log_every, "Steps between lines with loss, norm and speed", from(1));
    add("--eval-every", eval_every, "Steps between validations", from(1));
    add("--sample", sample, "Tokens to write after each validation", from(0));
    add("--temperature", temperature, "Of the sample: below 1, likely tokens more often", above_zero);
    add("--top-k", top_k, "Of the sample: how many tokens it chooses from", from(1));
    add("--snapshot-dir", snapshot_dir, "Resume from the newest snapshot here, and save here");
    add("--snapshot-every", snapshot_every, "Steps between snapshots", from(1));
    add("--peak-tflops", peak_tflops, "Of one GPU in this dtype: shows the share that is used (MFU)", above_zero);
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      std::exit(app.exit(error) == 0 ? 0 : 2);
    }
  }
};
