// SPDX-License-Identifier: Apache-2.0
#include "runtime/rendezvous/verdict.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::rendezvous {

std::string require_agreed(std::string_view verdict, std::string_view key) {
  const std::string text(verdict.substr(verdict.find(' ') + 1));
  if (verdict.starts_with(kAgreed)) return text;
  if (verdict.starts_with(kTimedOut)) throw Timeout(text);
  if (verdict.starts_with(kCorrupt)) throw CorruptData(text);
  if (verdict.starts_with(kMismatch)) throw Mismatch(text);
  throw CorruptData(
      fmt::format("rendezvous: store key '{}' holds {} bytes that are not a decision of the ranks; run the same build "
                  "of lockstep on all ranks",
                  key, verdict.size()));
}

}  // namespace lockstep::rendezvous
