// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of which each may throw.
#pragma once

#include <exception>
#include <memory>
#include <vector>

#include "tests/support/error_of.h"
#include "tests/support/rank_threads.h"

namespace lockstep::testing {

// What each rank's body threw, by rank. Its group is unwound with that.
inline std::vector<std::exception_ptr> thrown_on(int ranks, const RankBody& body,
                                                 const RankThreadsOptions& options = {}) {
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(ranks));
  try {
    run_ranks(
        ranks,
        [&](const std::shared_ptr<ProcessGroup>& group) {
          try {
            body(group);
          } catch (...) {
            thrown[static_cast<std::size_t>(group->rank())] = std::current_exception();
            throw;
          }
        },
        options);
  } catch (const std::exception&) {  // of one rank, which is among them
  }
  return thrown;
}

template <typename Expected>
void expect_thrown(const std::exception_ptr& error, const Cause& wanted) {
  ASSERT_NE(error, nullptr) << "nothing was thrown";
  expect_failure<Expected>([&] { std::rethrow_exception(error); }, wanted);
}

}  // namespace lockstep::testing
