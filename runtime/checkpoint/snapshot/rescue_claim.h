// SPDX-License-Identifier: Apache-2.0
// run7/step-000000001234-g000003.rescue: a lock that decides which survivor of a job saves its last step. The lock ends
// with its process, so a survivor that is killed while it saves leaves the step to the next.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <utility>

#include "lockstep/base/deadline.h"
#include "runtime/base/unique_fd.h"

namespace lockstep::checkpoint {

class RescueClaim {
 public:
  // Waits while another process holds the claim. Returns nullopt once `is_saved` is true, or at the deadline, which is
  // logged. On a file system without locks the first process that asks has the claim, and none waits. SystemError.
  static std::optional<RescueClaim> take(const std::filesystem::path& folder, std::int64_t step,
                                         std::int64_t generation, const std::function<bool()>& is_saved,
                                         const Deadline& deadline);

 private:
  explicit RescueClaim(UniqueFd fd) : fd_(std::move(fd)) {}

  UniqueFd fd_;
};

// Removes those of generations before `generation`, whose processes save no more. SystemError.
void remove_rescue_claims(const std::filesystem::path& folder, std::int64_t generation);

}  // namespace lockstep::checkpoint
