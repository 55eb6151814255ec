// SPDX-License-Identifier: Apache-2.0
#include "launcher/bisect/bisect_step.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "launcher/bisect/first_difference.h"
#include "launcher/system.h"
#include "lockstep/base/error.h"
#include "runtime/base/logging.h"

namespace lockstep::launcher {

int bisect_step_command(const BisectStepOptions& options) {
  set_log_label("bisect-step");
  try {
    const std::vector<std::filesystem::path> folders(options.folders.begin(), options.folders.end());
    const bisect::Recorded recorded = bisect::read_digests(folders);
    const bisect::Comparison comparison = bisect::compare(recorded);
    const std::string text = bisect::as_text(recorded, comparison);
    if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) throw SystemError("write to stdout", errno);
    return comparison.difference ? 1 : 0;
  } catch (const Error& error) {
    print_error(fmt::format("lockstep bisect-step: {}", error.what()));
    return kExitUsage;
  }
}

}  // namespace lockstep::launcher
