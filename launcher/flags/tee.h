// SPDX-License-Identifier: Apache-2.0
// The flag --tee. Pure.
#pragma once

#include <optional>
#include <string_view>

namespace lockstep::launcher {

// The streams of a rank that are shown on the console in addition to their files, numbered as in torchrun.
struct Tee {
  bool out = false;
  bool err = false;

  // Parses "0", "1", "2" or "3"; nullopt for another text.
  static std::optional<Tee> parse(std::string_view text);
};

}  // namespace lockstep::launcher
