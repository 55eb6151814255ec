// SPDX-License-Identifier: Apache-2.0
// One started collective of one rank.
#pragma once

#include <vector>

#include "lockstep/comm/work.h"
#include "runtime/comm/shm/arena.h"
#include "runtime/comm/shm/session.h"
#include "runtime/comm/shm/window_writer.h"
#include "runtime/comm/transfer.h"

namespace lockstep::shm {

using comm::Chunk;
using comm::CollectiveArgs;
using comm::Scratch;

// How the data travels. Follows from the records, so every rank chooses the same.
//   inlined: a copy beside the record; one round of flags.
//   direct:  the peers' arena memory is read in place; a second round says that nobody reads it any more.
//   window:  memory of the user's own, through every rank's window, chunk by chunk.
enum class Route : std::uint8_t { inlined, direct, window };

// The group's parts that a running collective uses.
struct CollectiveContext {
  Session& session;
  ArenaTable& arenas;
  std::uint64_t& position;  // in the windows, behind all earlier collectives
  WindowWriter& writer;     // of this rank's window
  // Kept from one collective to the next: where the ranks' memory is (both of size()), and room for transfers.
  std::vector<const std::byte*>& sources;
  std::vector<std::byte*>& destinations;
  Scratch& scratch;
};

// The steps of a collective on this rank. step() is called when every earlier one of this rank is through its steps.
class ShmCollective {
 public:
  ShmCollective(CollectiveArgs args, std::uint64_t sequence) : args_(std::move(args)), sequence_(sequence) {}

  const CollectiveArgs& args() const { return args_; }
  std::uint64_t sequence() const { return sequence_; }
  // The words of all ranks, once done.
  const comm::InlineScalars& words() const { return words_; }

  // True if its source fits beside the record.
  bool fits_inline() const { return source_bytes() <= kInlineBytes; }
  // Writes the record, and the payload if it fits; the caller then announces it. `is_next`: this rank's part of all
  // earlier ones is done.
  void publish(const CollectiveContext& context, bool is_next);
  // Does what can be done. Done when this rank's part is.
  WaitWord step(const CollectiveContext& context);
  // After that: the rank whose reading of this rank's memory is not over.
  WaitWord unfinished_reader(const Session& session) const;
  // True if the other ranks wait for this rank to finish its part.
  bool is_waited_for() const { return route_ == Route::direct; }

  // "all_reduce 42 (sum, 1000 x float32)".
  std::string describe() const;
  // "not arrived: rank 2 (host a, pid 7), rank 3 (...)".
  comm::Stragglers missing(const Session& session) const;

 private:
  // The first rank whose `word` is below `wanted`. Fails the group if that rank has left.
  template <typename WordOf>
  WaitWord late(const CollectiveContext& context, WordOf word_of, std::uint64_t wanted) const;
  WaitWord behind(const CollectiveContext& context, Session::Word word, std::uint64_t wanted) const;
  // The first rank that has not announced this collective.
  WaitWord not_arrived(const CollectiveContext& context) const;
  void compare_records(const CollectiveContext& context);
  [[noreturn]] void refuse_weights(const CollectiveContext& context) const;
  void choose_route(const CollectiveContext& context);
  void run_inline(const CollectiveContext& context);
  void run_direct(const CollectiveContext& context);
  WaitWord run_window(const CollectiveContext& context);
  bool in_two_phases() const;
  std::size_t source_bytes() const;
  void plan_window(const CollectiveContext& context);
  Chunk window_chunk(std::uint64_t index) const;
  std::uint64_t position_of(std::uint64_t index) const { return first_position_ + index * slot_bytes_; }
  // The chunk of all ranks in their windows; of this rank in `own`.
  void find_windows(const CollectiveContext& context, std::uint64_t index, const std::byte* own) const;
  // This rank's own chunk of the part that it reads; null if it gives nothing.
  const std::byte* own_source(const Chunk& chunk) const;
  // True if this rank gets what a reduction comes to.
  bool is_result_here() const;
  // Copies to this rank's window what others read of it.
  void fill_window(const CollectiveContext& context, const Chunk& chunk, std::byte* to) const;
  // One chunk through one stage of the window.
  WaitWord stage_chunk(const CollectiveContext& context);
  WaitWord reduce_chunk(const CollectiveContext& context);
  WaitWord drain_chunk(const CollectiveContext& context);

  CollectiveArgs args_;
  std::uint64_t sequence_;
  Route route_ = Route::inlined;
  bool arrived_ = false;  // every rank has announced it, and the records agree
  comm::InlineScalars words_{};

  // For the window route: a chunk of so many elements of each part takes a slot of the window, a part of it every
  // part_stride_ bytes.
  std::uint64_t chunks_ = 0;
  std::size_t chunk_elements_ = 0;
  std::size_t slot_bytes_ = 0;
  std::size_t part_stride_ = 0;
  std::uint64_t first_position_ = 0;
  // Chunks that this rank has put through each stage.
  std::uint64_t staged_ = 0;
  std::uint64_t reduced_ = 0;
  std::uint64_t drained_ = 0;
};

}  // namespace lockstep::shm
