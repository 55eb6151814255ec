// SPDX-License-Identifier: Apache-2.0
// Memory that runs out. A test that uses it links lockstep_test_scarce_memory, whose operator new it is.
#pragma once

#include <gtest/gtest.h>

namespace lockstep::testing {

// While one lives, operator new throws std::bad_alloc in every thread but the one that made it: from allocation number
// `spare` on, counted from 0, as many times as `failures` says. One at a time.
class ScarceMemory {
 public:
  static constexpr long kAll = 1'000'000'000;
  // ThreadSanitizer links an operator new of its own that a program can't replace.
#ifdef __SANITIZE_THREAD__
  static constexpr bool kIsPossible = false;
#else
  static constexpr bool kIsPossible = true;
#endif
  static constexpr const char* kWhyNot = "ThreadSanitizer has an operator new of its own";

  ScarceMemory(long spare, long failures);
  ~ScarceMemory();
  ScarceMemory(const ScarceMemory&) = delete;
  ScarceMemory& operator=(const ScarceMemory&) = delete;

  // Whether an allocation has failed.
  bool was_met() const;
};

// Calls `ask` with each allocation of other threads failing in turn, once, twice and as often as it is tried, until
// there is none that fails. After each of these calls `is_served` must be true.
template <typename Ask, typename IsServed>
void expect_service_after_each_shortage(const Ask& ask, const IsServed& is_served) {
  for (const long failures : {1L, 2L, ScarceMemory::kAll}) {
    bool was_met = true;
    for (long spare = 0; was_met; ++spare) {
      {
        const ScarceMemory scarce(spare, failures);
        ask();
        was_met = scarce.was_met();
      }
      ASSERT_TRUE(is_served()) << "after allocation " << spare << ", of " << failures;
    }
  }
}

}  // namespace lockstep::testing
