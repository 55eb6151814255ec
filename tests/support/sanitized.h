// SPDX-License-Identifier: Apache-2.0
// How many of a test's many alike cases are run under a sanitizer, which makes each of them ten times as slow.
#pragma once

namespace lockstep::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// From a bit of a text to the next one that is looked at: every bit, or one of each byte, in turn each of the eight.
inline constexpr unsigned kNextBit = kSanitized ? 9 : 1;

}  // namespace lockstep::testing
