// SPDX-License-Identifier: Apache-2.0
// What a call throws: its type, the fields of its cause, and its text where that is a promise.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/job/cause.h"

namespace lockstep::testing {

// The test fails if the call throws nothing, or anything but an Expected.
template <typename Expected = InvalidArgument, typename Call>
std::optional<Expected> thrown_by(Call&& call) {
  try {
    static_cast<void>(std::forward<Call>(call)());
  } catch (const Expected& error) {
    return error;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another error than expected: " << error.what();
    return std::nullopt;
  }
  ADD_FAILURE() << "no error at all";
  return std::nullopt;
}

// The message of what the call throws; empty if that is no Expected.
template <typename Expected = InvalidArgument, typename Call>
std::string error_of(Call&& call) {
  const auto error = thrown_by<Expected>(std::forward<Call>(call));
  return error ? error->what() : "";
}

// The errno of the SystemError that the call throws; 0 if it throws none.
template <typename Call>
int errno_of(Call&& call) {
  const auto error = thrown_by<SystemError>(std::forward<Call>(call));
  return error ? error->error_number() : 0;
}

// The message of an exception, with its type in front: "Mismatch: ..."; "nothing" of a null pointer.
inline std::string text_of(const std::exception_ptr& error) {
  if (!error) return "nothing";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& it) {
    const char* type = "exception";
    if (dynamic_cast<const Mismatch*>(&it) != nullptr) type = "Mismatch";
    if (dynamic_cast<const PeerLost*>(&it) != nullptr) type = "PeerLost";
    if (dynamic_cast<const Timeout*>(&it) != nullptr) type = "Timeout";
    if (dynamic_cast<const InvalidArgument*>(&it) != nullptr) type = "InvalidArgument";
    if (dynamic_cast<const BackendUnavailable*>(&it) != nullptr) type = "BackendUnavailable";
    if (dynamic_cast<const CorruptData*>(&it) != nullptr) type = "CorruptData";
    if (dynamic_cast<const StoreError*>(&it) != nullptr) type = "StoreError";
    return std::string(type) + ": " + it.what();
  }
}
// What a call throws, as text_of() says it.
template <typename Call>
std::string outcome_of(Call&& call) {
  try {
    std::forward<Call>(call)();
    return "nothing";
  } catch (...) {
    return text_of(std::current_exception());
  }
}

// A failure is one of the line that calls. Clang 14 has no std::source_location.
inline void expect_text(std::string_view text, std::initializer_list<std::string_view> parts,
                        const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  for (const std::string_view part : parts) {
    if (text.find(part) != std::string_view::npos) continue;
    ADD_FAILURE_AT(file, line) << "no '" << part << "' in: " << text;
  }
}

// The kind, and the fields that `wanted` sets to another value than their default: it can't say that a field is not
// set. Of the text it says a part.
inline void expect_cause(const Error& error, const Cause& wanted) {
  const Cause* const cause = error.cause();
  ASSERT_NE(cause, nullptr) << "an error without a cause: " << error.what();
  const Cause unset;
  const auto expect = [&](const char* name, auto Cause::*field) {
    if (wanted.*field != unset.*field) {
      EXPECT_EQ(cause->*field, wanted.*field) << name << " of: " << error.what();
    }
  };
  EXPECT_EQ(name_of(cause->kind), name_of(wanted.kind)) << error.what();
  expect("rank", &Cause::rank);
  expect("reporter", &Cause::reporter);
  expect("host", &Cause::host);
  expect("pid", &Cause::pid);
  expect("restarts", &Cause::restarts);
  expect("step", &Cause::step);
  expect("bucket", &Cause::bucket);
  expect("sequence", &Cause::sequence);
  expect("error_number", &Cause::error_number);
  expect("signal", &Cause::signal);
  expect("ends_group", &Cause::ends_group);
  expect_text(error.what(), {wanted.text});
}
template <typename Expected, typename Call>
void expect_failure(Call&& call, const Cause& wanted) {
  if (const auto error = thrown_by<Expected>(std::forward<Call>(call))) expect_cause(*error, wanted);
}

}  // namespace lockstep::testing
