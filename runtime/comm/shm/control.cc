// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/shm/control.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <new>

#include "lockstep/base/error.h"

namespace lockstep::shm {

// Offsets of the parts. Each starts at a page, so that one rank's writes stay off the lines of another's.
struct ControlBlock::Layout {
  explicit Layout(int ranks) {
    const auto n = static_cast<std::size_t>(ranks);
    header = add(sizeof(Header));
    words = add(n * sizeof(RankWords));
    info = add(n * sizeof(RankInfo));
    failures = add(n * sizeof(FailureText));
    announcements = add(n * kRing * sizeof(Announcement));
    payloads = add(n * kRing * kInlineBytes);
    window_bytes = std::clamp((16u << 20) / std::bit_ceil(n), kSmallestWindow, kLargestWindow);
    windows = add(n * window_bytes);
    channels = add(n * n * sizeof(Channel));
    // About 4 MiB for all pairs together.
    channel_window_bytes = std::clamp<std::size_t>((4u << 20) / (2 * n * n) / 64 * 64, 1024, 16384);
    channel_windows = add(n * n * 2 * channel_window_bytes);
  }
  std::size_t add(std::size_t bytes) {
    constexpr std::size_t kAlignment = 4096;  // a page
    const std::size_t begin = total;
    total += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return begin;
  }

  std::size_t total = 0;
  std::size_t header, words, info, failures, announcements, payloads, windows, channels, channel_windows;
  std::size_t window_bytes, channel_window_bytes;
};

std::size_t ControlBlock::bytes_for(int ranks) { return Layout(ranks).total; }

void ControlBlock::format(std::byte* block, int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  const Layout layout(ranks);
  new (block + layout.header) Header{kLayout, n, {}};
  std::uninitialized_value_construct_n(reinterpret_cast<RankWords*>(block + layout.words), n);
  std::uninitialized_value_construct_n(reinterpret_cast<RankInfo*>(block + layout.info), n);
  std::uninitialized_value_construct_n(reinterpret_cast<FailureText*>(block + layout.failures), n);
  std::uninitialized_value_construct_n(reinterpret_cast<Announcement*>(block + layout.announcements), n * kRing);
  std::uninitialized_value_construct_n(reinterpret_cast<Channel*>(block + layout.channels), n * n);
}

ControlBlock::ControlBlock(std::byte* block, int ranks) : ranks_(ranks) {
  const Layout layout(ranks);
  header_ = std::launder(reinterpret_cast<Header*>(block + layout.header));
  if (header_->layout != kLayout || header_->ranks != static_cast<std::uint64_t>(ranks)) {
    throw BackendUnavailable(
        fmt::format("shared memory: the group's control block has layout {:x} for {} ranks, and this rank wants layout "
                    "{:x} for {}; run the same build of lockstep on all ranks",
                    header_->layout, header_->ranks, kLayout, ranks));
  }
  words_ = std::launder(reinterpret_cast<RankWords*>(block + layout.words));
  info_ = std::launder(reinterpret_cast<RankInfo*>(block + layout.info));
  failures_ = std::launder(reinterpret_cast<FailureText*>(block + layout.failures));
  announcements_ = std::launder(reinterpret_cast<Announcement*>(block + layout.announcements));
  payloads_ = block + layout.payloads;
  windows_ = block + layout.windows;
  window_bytes_ = layout.window_bytes;
  channels_ = std::launder(reinterpret_cast<Channel*>(block + layout.channels));
  channel_windows_ = block + layout.channel_windows;
  channel_window_bytes_ = layout.channel_window_bytes;
}

}  // namespace lockstep::shm
