// SPDX-License-Identifier: Apache-2.0
// Memory that runs out. A test that uses it links lockstep_test_scarce_memory, whose operator new it is.
#pragma once

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

}  // namespace lockstep::testing
