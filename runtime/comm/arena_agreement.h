// SPDX-License-Identifier: Apache-2.0
// The end of allocate(): all ranks have their arena or none has, and each hears whose memory was missing, and why.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "runtime/base/internal_api.h"

namespace lockstep::comm {

// Every rank's text, in rank order, for this rank's: all_gather_text(), or what carries more with it.
using ExchangeTexts = std::function<std::vector<std::string>(const std::string& own)>;

// Collective. `problem`: why this rank has no arena; empty if it has one. Throws BackendUnavailable with all ranks'
// problems if there is any; its cause() names this rank if it has one, else the first that has. Nobody throws before
// all have heard; a rank's own problem is thrown there even if the exchange fails.
LOCKSTEP_INTERNAL_API void agree_on_arena(ProcessGroup& group, std::size_t bytes, const std::string& problem,
                                          const ExchangeTexts& exchange = {});

}  // namespace lockstep::comm
