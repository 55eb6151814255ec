// SPDX-License-Identifier: Apache-2.0
// The verdict on what ranks decide together, as the store keeps it: one of these words, and a text.
//
// Any rank may propose one; the store keeps the first (compare_set), so it is every rank's. Pure.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::rendezvous {

inline constexpr std::string_view kAgreed = "agreed ";
inline constexpr std::string_view kCorrupt = "corrupt ";
inline constexpr std::string_view kTimedOut = "timeout ";
inline constexpr std::string_view kMismatch = "mismatch ";

// The text of an agreement. Throws what any other verdict says; CorruptData, naming the store's key, if the text is not
// one.
std::string require_agreed(std::string_view verdict, std::string_view key);

}  // namespace lockstep::rendezvous
