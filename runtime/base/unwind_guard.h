// SPDX-License-Identifier: Apache-2.0
// Whether an exception ends the lifetime of an object: its destructor then has failed work to report, not an orderly
// end.
//
// A member of that object. It compares with the number of uncaught exceptions when the object was made, because a
// destructor that runs while another exception unwinds may itself make and end objects in order.
#pragma once

#include <exception>

namespace lockstep {

class UnwindGuard {
 public:
  // For the destructor of the object that holds this. The thread that made the object.
  bool is_unwinding() const noexcept { return std::uncaught_exceptions() > at_construction_; }

 private:
  int at_construction_ = std::uncaught_exceptions();
};

}  // namespace lockstep
