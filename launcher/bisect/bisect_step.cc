// SPDX-License-Identifier: Apache-2.0
#include "launcher/bisect/bisect_step.h"

#include <filesystem>

#include "launcher/base/exit_codes.h"
#include "launcher/base/system.h"
#include "launcher/bisect/first_difference.h"

namespace lockstep::launcher {

int bisect_step_command(const BisectStepOptions& options) {
  return exit_code_of("bisect-step", kExitUsage, [&] {
    const std::vector<std::filesystem::path> folders(options.folders.begin(), options.folders.end());
    const bisect::Recorded recorded = bisect::read_digests(folders);
    const bisect::Comparison comparison = bisect::compare(recorded);
    write_to_stdout(bisect::as_text(recorded, comparison));
    return comparison.difference ? 1 : 0;
  });
}

}  // namespace lockstep::launcher
