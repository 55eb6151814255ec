// The message of the error that a call throws.
#pragma once

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "runtime/base/error.h"

namespace lockstep::testing {

// The test fails if the call throws nothing, or anything but an Expected.
template <typename Expected = InvalidArgument, typename Call>
std::string error_of(Call&& call) {
  try {
    std::forward<Call>(call)();
  } catch (const Expected& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another error than expected: " << error.what();
    return "";
  }
  ADD_FAILURE() << "no error at all";
  return "";
}

}  // namespace lockstep::testing
