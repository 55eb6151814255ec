// SPDX-License-Identifier: Apache-2.0
// A soft limit of this process (setrlimit), for a scope.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace lockstep::testing {

class LimitedTo {
 public:
  LimitedTo(int resource, rlim_t soft) : resource_(static_cast<__rlimit_resource>(resource)) {
    EXPECT_EQ(getrlimit(resource_, &before_), 0);
    const rlimit now{.rlim_cur = soft, .rlim_max = before_.rlim_max};
    EXPECT_EQ(setrlimit(resource_, &now), 0);
  }
  ~LimitedTo() { setrlimit(resource_, &before_); }
  LimitedTo(const LimitedTo&) = delete;
  LimitedTo& operator=(const LimitedTo&) = delete;

 private:
  const __rlimit_resource resource_;
  rlimit before_{};
};

}  // namespace lockstep::testing
