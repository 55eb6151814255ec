// SPDX-License-Identifier: Apache-2.0
#include "runtime/snapshot/replay_request.h"

#include <fmt/format.h>

#include <charconv>

#include "lockstep/base/error.h"

namespace lockstep {

std::optional<ReplayRequest> ReplayRequest::read(const Environment& environment) {
  const std::string text = environment.get("LOCKSTEP_REPLAY").value_or("");
  if (text.empty()) return std::nullopt;
  ReplayRequest request;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, request.step);
  if (error != std::errc() || request.step < 1 || at == end || *at != ':' || at + 1 == end) {
    throw InvalidArgument(fmt::format(
        "Snapshots: LOCKSTEP_REPLAY is '{}', but must be STEP:FOLDER; lockstep replay sets it: unset it in other runs",
        text));
  }
  request.folder = std::string(at + 1, end);
  return request;
}

}  // namespace lockstep
