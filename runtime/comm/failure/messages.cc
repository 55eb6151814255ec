// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/failure/messages.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::comm {

std::string left_text(const std::string& gone, std::uint64_t last) {
  return fmt::format("{} left after collective {}", gone, last);
}

std::string left_early_text(const std::string& gone, std::uint64_t last, const std::string& who,
                            const std::string& collective) {
  return fmt::format("{}; {} is in {}, which needs every rank: all ranks must take part in the same collectives",
                     left_text(gone, last), who, collective);
}

std::string left_unanswered_text(const std::string& gone, std::uint64_t last, const std::string& who,
                                 const std::string& message) {
  return fmt::format("{}; {} waits for its {}", left_text(gone, last), who, message);
}

std::string timeout_text(const std::string& operation, const std::string& who, const Deadline& deadline,
                         const std::string& missing) {
  return fmt::format("{} on {} timed out, {}; {}; see why it is late, or raise the timeout", operation, who,
                     deadline.progress(), missing);
}

std::string destroyed_text(const std::string& who, std::uint64_t collectives, std::size_t messages) {
  return fmt::format(
      "{} destroyed its group with {} collectives and {} messages under way; it must wait for each work first", who,
      collectives, messages);
}

std::string unwound_text(const std::string& who, std::uint64_t last) {
  return fmt::format("{} ended with an exception after collective {}: see its own output", who, last);
}

void throw_closed(const std::string& who) {
  throw InvalidArgument(
      fmt::format("{}: the process group was destroyed before this operation was done; call wait() on each work before "
                  "you destroy the group",
                  who));
}

}  // namespace lockstep::comm
