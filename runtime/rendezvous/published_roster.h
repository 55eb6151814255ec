// SPDX-License-Identifier: Apache-2.0
// The roster as whoever completes a meeting leaves it in the store for all others. Pure.
//
// Each rank reading every other's claim costs the store n * n of them: ten gigabytes for ten thousand ranks. So one
// reads them all, and the others read what is left of it when hosts are told once: some seven bytes a rank.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/rendezvous/roster.h"

namespace lockstep::rendezvous {

// Well below what a store takes as one value.
inline constexpr std::size_t kMostPublishedBytes = std::size_t{1} << 20;

// In parts of at most `most` bytes.
std::vector<std::string> publish(const Roster& roster, std::size_t most = kMostPublishedBytes);
// Throws CorruptData, with `where` it was found, for parts that publish() doesn't write.
Roster read_published(std::span<const std::string> parts, std::string_view where);

}  // namespace lockstep::rendezvous
