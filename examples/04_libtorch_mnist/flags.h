// SPDX-License-Identifier: Apache-2.0
// The program's command line.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdlib>
#include <string>

struct Flags {
  // Ends the program after --help, and where it is called in another way, which a line says.
  Flags(int argc, char** argv) {
    CLI::App app("LibTorch's MNIST program, on any number of processes");
    app.add_option("folder", folder, "MNIST's four files; without it the program renders digits");
    auto* snapshots =
        app.add_option("--snapshot-dir", snapshot_dir, "Go on from the newest snapshot in this folder, and save there");
    app.add_option("--snapshot-every", snapshot_every, "Steps between snapshots")
        ->needs(snapshots)
        ->check(CLI::Range(1, 1 << 24).description(""))
        ->capture_default_str();
    app.add_option("--micro-batches", micro_batches,
                   "Of a step: the same bits at any number of ranks up to this; 0: as fast as may be")
        ->check(CLI::Range(0, 1 << 16))
        ->capture_default_str();
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      std::exit(app.exit(error));
    }
  }

  std::string folder;
  std::string snapshot_dir;  // where the run goes on from, and saves to; empty: neither
  std::int64_t snapshot_every = 100;
  int micro_batches = 0;
};
