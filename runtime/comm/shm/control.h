// SPDX-License-Identifier: Apache-2.0
// The control block: what the ranks of a group write for each other to read. One memfd per group, mapped by all.
//
// Every word has one writer, the rank it belongs to; the exception is `first_failure`, which is claimed once. Ranks
// sleep on the bell of their process (comm/progress.h), which is not in here, or on a word of a peer. The words of a
// collective only grow; those of a Message that count its chunks start again with each message. A rank fills plain
// memory (a record, a payload, a window) and then stores a word with release; who has read the word with acquire may
// read that memory. It is filled again only after every rank has said, by a word of its own, that it is done with it.
// Nothing here can be left locked by a rank that dies.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lockstep/comm/process_group.h"
#include "runtime/comm/op_record.h"
#include "runtime/comm/transfer.h"

namespace lockstep::shm {

// Collectives in flight per rank, at most: starting another one waits for the oldest.
inline constexpr std::size_t kRing = 64;
// Up to this many bytes per rank travel beside the record and need one round of flags instead of two.
inline constexpr std::size_t kInlineBytes = 2048;
// A rank's window, through which memory of the user's own is passed on: a ring that is filled again and again. It is
// larger than a core's own cache and small in the one that cores share: a line has gone there from its last reader when
// it is filled again, which takes half as long as to take it out of another core. Less with many ranks, in all 16 MiB
// or this.
inline constexpr std::size_t kLargestWindow = 1 << 20;
inline constexpr std::size_t kSmallestWindow = 256 << 10;
// Messages in flight per ordered pair of ranks, and the bytes that travel beside a message's description.
inline constexpr std::size_t kMessages = 16;
inline constexpr std::size_t kMessageInlineBytes = 128;
inline constexpr std::size_t kCauseBytes = 2040;
// The control block grows with the square of the ranks.
inline constexpr int kMaxRanks = 256;

// Changes with the layout: ranks of different builds must not meet.
inline constexpr std::uint64_t kLayout = 0x6c6f636b73687035;  // "lockshp5"

using comm::OpKind;
using comm::OpRecord;

using comm::ArenaOffset;

// A record where its peers see it, with its flag and its weight in the same cache line: they learn of a collective in
// one transfer. The note's fields are in the next line, which nobody reads without one.
struct alignas(64) Announcement {
  std::atomic<std::uint64_t> sequence;  // of the collective whose record, and inline payload, is there
  ArenaOffset source;                   // what the peers read; in all_reduce and reduce they write there too
  OpRecord record;
};
static_assert(sizeof(Announcement) == 128 && offsetof(Announcement, record) + offsetof(OpRecord, words) == 56);

// A rank's progress. Collectives are numbered from 1. Peers sleep on the low half of a word.
struct alignas(64) RankWords {
  std::atomic<std::uint64_t>
      finished;  // last collective whose part this rank has done: it reads no peer's memory for it
  // Bytes of the windows, counted from the group's first: how far this rank has filled its own; has reduced its shares;
  // has read all.
  std::atomic<std::uint64_t> staged;
  std::atomic<std::uint64_t> reduced;
  std::atomic<std::uint64_t> drained;
  std::atomic<std::uint64_t> messages;  // changes with each word of a Message that this rank writes
  std::atomic<std::uint64_t> started;   // last collective it has announced; for messages
  // Read at every step and hardly ever written: a cache line of its own, which stays with all ranks.
  alignas(64) std::atomic<std::uint64_t> left_after;  // 0: here; else 1 + the last collective it started before it left
};
static_assert(sizeof(RankWords) == 128);

// The bytes of the Cause (job/cause.h) that a rank wants to be the first; written before it is claimed.
struct alignas(64) FailureText {
  std::uint64_t length;
  std::array<char, kCauseBytes> bytes;
};

// A rank's process and cores; written before the first collective.
struct alignas(64) RankInfo {
  std::uint64_t process;                   // process_token(): equal for ranks that are threads of one process
  std::uint64_t cores;                     // it may use
  std::array<std::uint64_t, 16> core_set;  // which, as a bit mask; more than 1024 cores fold onto these
};

// One message of a pair. The sender writes the first line and the payload, the receiver the second line.
struct alignas(64) MessageSlot {
  std::atomic<std::uint64_t> posted;  // number of the message (from 1) whose description is here
  std::atomic<std::uint64_t> staged;  // chunks put into the pair's window for it
  std::int64_t count;
  ArenaOffset source;
  std::int32_t tag;
  DType dtype;
  alignas(64) std::atomic<std::uint64_t> accepted;  // number of the message that a recv took
  std::atomic<std::uint64_t> drained;               // chunks taken out of the window
  std::atomic<std::uint64_t> taken;                 // number of the message that is all there
  alignas(64) std::array<std::byte, kMessageInlineBytes> payload;
};

// The messages of one rank to another, by message number modulo kMessages.
struct Channel {
  std::array<MessageSlot, kMessages> messages;
};

struct alignas(64) Header {
  std::uint64_t layout;
  std::uint64_t ranks;
  alignas(64) std::atomic<std::uint32_t> first_failure;  // 0: none; else 1 + the rank whose text it is
};

// Typed access to the block; owns nothing.
class ControlBlock {
 public:
  static std::size_t bytes_for(int ranks);
  // Starts the life of everything in a block of zeros.
  static void format(std::byte* block, int ranks);
  // Throws BackendUnavailable if the block is of another build or size.
  ControlBlock(std::byte* block, int ranks);

  Header& header() const { return *header_; }
  RankWords& words(int rank) const { return words_[rank]; }
  RankInfo& info(int rank) const { return info_[rank]; }
  FailureText& failure(int rank) const { return failures_[rank]; }
  Announcement& announcement(int rank, std::uint64_t sequence) const {
    return announcements_[static_cast<std::size_t>(rank) * kRing + sequence % kRing];
  }
  std::byte* payload(int rank, std::uint64_t sequence) const {
    return payloads_ + (static_cast<std::size_t>(rank) * kRing + sequence % kRing) * kInlineBytes;
  }
  // A power of two.
  std::size_t window_bytes() const { return window_bytes_; }
  // Where byte `position` of the stream through rank's window is.
  std::byte* window(int rank, std::uint64_t position) const {
    return windows_ + static_cast<std::size_t>(rank) * window_bytes_ + position % window_bytes_;
  }
  Channel& channel(int sender, int receiver) const {
    return channels_[static_cast<std::size_t>(sender) * static_cast<std::size_t>(ranks_) +
                     static_cast<std::size_t>(receiver)];
  }
  // Half of a pair's window, and its size: 16 KiB for up to 11 ranks, less for more.
  std::byte* channel_window(int sender, int receiver, std::uint64_t chunk) const {
    const auto pair =
        static_cast<std::size_t>(sender) * static_cast<std::size_t>(ranks_) + static_cast<std::size_t>(receiver);
    return channel_windows_ + (pair * 2 + chunk % 2) * channel_window_bytes_;
  }
  std::size_t channel_window_bytes() const { return channel_window_bytes_; }

 private:
  struct Layout;

  int ranks_;
  Header* header_;
  RankWords* words_;
  RankInfo* info_;
  FailureText* failures_;
  Announcement* announcements_;
  std::byte* payloads_;
  std::byte* windows_;
  std::size_t window_bytes_;
  Channel* channels_;
  std::byte* channel_windows_;
  std::size_t channel_window_bytes_;
};

}  // namespace lockstep::shm
