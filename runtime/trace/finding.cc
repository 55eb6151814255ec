// SPDX-License-Identifier: Apache-2.0
#include "runtime/trace/finding.h"

#include <fmt/format.h>

namespace lockstep::trace {

std::string describe(const Finding& finding) {
  if (finding.kind == FindingKind::apart) {
    return fmt::format("replicas differ in step {}, from parameter '{}' on: {}", finding.step, finding.parameter,
                       finding.rank < 0 ? std::string("which rank is wrong is not known")
                                        : fmt::format("rank {} differs", finding.rank));
  }
  return fmt::format("{} in rank {}'s gradient of '{}' in step {}",
                     finding.kind == FindingKind::nan ? "NaN" : "infinity", finding.rank, finding.parameter,
                     finding.step);
}

std::string_view name_of(FindingKind kind) {
  switch (kind) {
    case FindingKind::nan: return "nan";
    case FindingKind::infinity: return "infinity";
    case FindingKind::apart: return "apart";
  }
  return "?";
}

std::optional<FindingKind> finding_kind(std::string_view name) {
  for (const FindingKind kind : {FindingKind::nan, FindingKind::infinity, FindingKind::apart}) {
    if (name == name_of(kind)) return kind;
  }
  return std::nullopt;
}

std::string kept_name(const std::string& parameter) {
  if (parameter.size() <= Finding::kMostNameBytes) return parameter;
  return ".." + parameter.substr(parameter.size() - (Finding::kMostNameBytes - 2));
}

}  // namespace lockstep::trace
