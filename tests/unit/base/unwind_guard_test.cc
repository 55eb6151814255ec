// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/unwind_guard.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace lockstep::unwind_guard_test {
namespace {

struct Ended {
  explicit Ended(bool& by_exception) : by_exception_(by_exception) {}
  ~Ended() { by_exception_ = guard_.is_unwinding(); }
  bool& by_exception_;
  UnwindGuard guard_;
};

// Makes and ends an Ended in order while an exception unwinds.
struct EndsOneInOrder {
  ~EndsOneInOrder() { const Ended inner(by_exception_); }
  bool& by_exception_;
};

TEST(UnwindGuard, TellsAnExceptionFromAnEndInOrder) {
  bool by_exception = true;
  { const Ended object(by_exception); }
  EXPECT_FALSE(by_exception);
  try {
    const Ended object(by_exception);
    throw std::runtime_error("x");
  } catch (const std::runtime_error&) {
  }
  EXPECT_TRUE(by_exception);
  try {
    const EndsOneInOrder object{by_exception};
    throw std::runtime_error("x");
  } catch (const std::runtime_error&) {
  }
  EXPECT_FALSE(by_exception);
}

}  // namespace
}  // namespace lockstep::unwind_guard_test
