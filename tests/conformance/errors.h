// What the tests of failures share: the error that a call throws, and what its text must have.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/device/buffer_view.h"

namespace lockstep::testing {

// The text of the error that `call` throws, which must be of this type.
template <typename Expected, typename Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Expected& error) {
    return error.what();
  } catch (const std::exception& error) {
    throw std::runtime_error(std::string("another error than expected: ") + error.what());
  }
  throw std::runtime_error("no error at all");
}

inline void expect_text(const std::string& text, std::initializer_list<std::string_view> parts) {
  for (const std::string_view part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in: " << text;
}

inline BufferView view(std::vector<float>& values) { return BufferView(std::span(values)); }

}  // namespace lockstep::testing
