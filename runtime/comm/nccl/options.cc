// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/nccl/options.h"

#include <fmt/format.h>

#include <string>

#include "lockstep/base/error.h"

namespace lockstep::nccl {
namespace {

bool switched(const Environment& environment, const char* name, const char* other_than_default, const char* otherwise) {
  const std::string text = environment.get(name).value_or(otherwise);
  if (text == other_than_default || text == otherwise) return text == other_than_default;
  throw InvalidArgument(fmt::format("environment: {}='{}' is unknown; give '{}' or '{}' (the default)", name, text,
                                    other_than_default, otherwise));
}

}  // namespace

Options options_of(const Environment& environment) {
  Options options;
  options.check_collectives = switched(environment, "LOCKSTEP_CHECK_COLLECTIVES", "1", "0");
  options.may_share_gpus = switched(environment, "LOCKSTEP_OVERSUBSCRIBE_GPU", "1", "0");
  if (const auto text = environment.get("LOCKSTEP_FAILURE_WATCHDOG"); text && !text->empty()) {
    const auto seconds = parse_int(*text);
    options.watchdog = *text != "off";
    if (options.watchdog && (!seconds || *seconds < 1 || *seconds > 3600)) {
      throw InvalidArgument(
          fmt::format("environment: LOCKSTEP_FAILURE_WATCHDOG='{}' is not a number of seconds from 1 to 3600; give the "
                      "seconds after which a process whose GPU can't be aborted is ended (5 is the default), or 'off'",
                      *text));
    }
    if (options.watchdog) options.abort_patience = std::chrono::seconds(*seconds);
  }
  if (const auto text = environment.get("LOCKSTEP_NCCL_MAX_CTAS"); text && !text->empty()) {
    const auto value = parse_int(*text);
    if (!value || *value < 1 || *value > 64) {
      throw InvalidArgument(
          fmt::format("environment: LOCKSTEP_NCCL_MAX_CTAS='{}' is not a number from 1 to 64; give the most "
                      "multiprocessors that a collective may take",
                      *text));
    }
    options.max_ctas = static_cast<int>(*value);
  }
  return options;
}

}  // namespace lockstep::nccl
