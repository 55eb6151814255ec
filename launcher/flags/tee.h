// SPDX-License-Identifier: Apache-2.0
// --tee. Pure.
#pragma once

#include <optional>
#include <string_view>

namespace lockstep::launcher {

// Which of a rank's streams are shown on the console beside their files, as torchrun numbers them.
struct Tee {
  bool out = false;
  bool err = false;

  // "0", "1", "2" or "3"; nothing for another text.
  static std::optional<Tee> parse(std::string_view text);
};

}  // namespace lockstep::launcher
