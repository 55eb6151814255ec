// SPDX-License-Identifier: Apache-2.0
// The metrics of a running job in Prometheus' format:
// https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format. Pure.
#pragma once

#include <string>
#include <string_view>

#include "launcher/live/live_report.h"

namespace lockstep::launcher {

std::string as_metrics(const LiveReport& report);

// Returns the whole HTTP/1.1 answer to a request whose first line is `line`: the metrics for GET /metrics, else the
// error.
std::string http_answer(std::string_view line, const LiveReport& report);

}  // namespace lockstep::launcher
