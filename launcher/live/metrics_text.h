// SPDX-License-Identifier: Apache-2.0
// A running job as Prometheus reads it: https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format.
// Pure.
#pragma once

#include <string>
#include <string_view>

#include "launcher/live/live_report.h"

namespace lockstep::launcher {

std::string as_metrics(const LiveReport& report);

// The whole answer to a request whose first line is `line`: the metrics at GET /metrics, else what is wrong, as
// HTTP/1.1 has it.
std::string http_answer(std::string_view line, const LiveReport& report);

}  // namespace lockstep::launcher
