// SPDX-License-Identifier: Apache-2.0
// The command line of the three programs, and what they share.
#pragma once

#include <lockstep/libtorch.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

// 24 rows in 6 micro-batches of 4, however many ranks share them: at most 6.
constexpr lockstep::Reproducible kSame{.micro_batches = 6, .global_batch = 24};

struct Flags {
  int64_t steps = 40;
  std::string snapshot_dir;
  int64_t snapshot_every = 10;

  Flags(int argc, char** argv) {
    CLI::App app("Trains the same bits on 1 to 6 ranks.");
    const auto from_1 = CLI::Range(int64_t{1}, int64_t{1} << 40).description("");
    app.add_option("--steps", steps, "Steps to train")->check(from_1)->capture_default_str();
    app.add_option("--snapshot-dir", snapshot_dir, "Resume from the newest snapshot here, and save here");
    app.add_option("--snapshot-every", snapshot_every, "Steps between snapshots")->check(from_1)->capture_default_str();
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      std::exit(app.exit(error) == 0 ? 0 : 2);
    }
  }
};

// Prints the loss of this step, over all ranks' rows.
template <typename Ddp>
void print_loss(const Ddp& ddp, const char* name) {
  if (ddp.group()->rank() != 0) return;
  std::printf("step %lld: %s %.6f\n", static_cast<long long>(ddp.steps()), name, ddp.last_loss().value());
  std::fflush(stdout);
}
