// SPDX-License-Identifier: Apache-2.0
// What the flags say of the ranks' output. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "launcher/output/rank_set.h"

namespace lockstep::launcher {

// Which of a rank's streams are shown on the console beside their files, as torchrun numbers them.
struct Tee {
  bool out = false;
  bool err = false;

  // "0", "1", "2" or "3"; nothing for another text.
  static std::optional<Tee> parse(std::string_view text);
};

struct OutputOptions {
  std::string log_dir = {};      // empty: no files
  Tee tee = {};                  // with files; without them all is shown
  RankSet shown = {};            // of these ranks only something is shown
  bool keep_last_lines = false;  // of each rank's stderr, where there is no file
  int hosts = 1;                 // of the job
  int generation = 0;            // to which this host has come
  int node_rank = 0;             // of this one among them then
};

}  // namespace lockstep::launcher
