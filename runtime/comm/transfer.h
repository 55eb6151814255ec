// SPDX-License-Identifier: Apache-2.0
// The data movement of one collective, as pure functions over memory: no flags, no waiting.
//
// A collective gives every rank sources: the peers' staged memory, be it their arena, their inline payload or their
// window. Each source is one part, or one part per rank, of which a chunk of elements is there. Pulling reads the
// sources and writes this rank's output only. Ranges of ranks and elements are half open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "runtime/base/internal_api.h"
#include "runtime/comm/op_record.h"
#include "runtime/comm/reduction.h"

namespace lockstep::comm {

// A collective as one rank sees it.
struct CollectiveArgs {
  OpRecord record;
  ConstBufferView input;  // what this rank gives; empty if it gives nothing
  BufferView output;      // what it gets; the input itself in place
  int rank = 0;
  int size = 1;
  comm::Reduction reduction;
  bool zero_if_weightless = false;          // ReductionOptions
  std::int64_t* total_on_device = nullptr;  // ReductionOptions

  std::size_t element_bytes() const { return size_of(record.dtype); }
  std::size_t count() const { return static_cast<std::size_t>(record.count); }
};

// Where something is in the memory that ranks share, in an arena of its rank.
struct ArenaOffset {
  std::int64_t arena = -1;  // -1: memory of the user's own, which no peer can see
  std::uint64_t offset = 0;
};

// Elements [offset, offset + length) of each part.
struct Chunk {
  std::size_t offset = 0;
  std::size_t length = 0;
};

// Where the sources are: of each rank (null if it gives nothing) the chunk of its part 0; part p is p * part_stride
// bytes further. `own`: this rank's chunk of the part that it reads, if it is elsewhere.
struct Sources {
  std::span<const std::byte* const> base;
  std::size_t part_stride = 0;
  const std::byte* own = nullptr;
};

// Room for addresses, kept from call to call.
struct Scratch {
  std::vector<const std::byte*> sources;
  std::vector<std::byte*> destinations;
};

// memmove, of which nothing is done where nothing is to be done.
inline void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}

// True if `rank` gives something.
LOCKSTEP_INTERNAL_API bool is_source(const OpRecord& record, int rank);
// True if the collective reduces, and every rank gets the result or root alone does.
LOCKSTEP_INTERNAL_API bool is_reduction_in_place(OpKind kind);
// Parts in a source: 1, or one for each rank.
std::size_t source_parts(OpKind kind, int size);
// The one that `rank` reads.
std::size_t part_read(OpKind kind, int rank);

// Copies the chunk of this rank's input, part after part, to `to`, by `copy`.
template <typename Copy = decltype(&copy_bytes)>
void stage(const CollectiveArgs& args, const Chunk& chunk, std::byte* to, std::size_t part_stride,
           Copy copy = &copy_bytes) {
  if (!is_source(args.record, args.rank)) return;
  const std::size_t element = args.element_bytes();
  const auto* const input = static_cast<const std::byte*>(args.input.data);
  for (std::size_t part = 0; part < source_parts(args.record.kind, args.size); ++part) {
    copy(to + part * part_stride, input + (part * args.count() + chunk.offset) * element, chunk.length * element);
  }
}
// Reads the sources of all ranks into this rank's output.
void pull(const CollectiveArgs& args, const Chunk& chunk, const Sources& sources, Scratch& scratch);

// One of `parts` ranges of a chunk of elements: whole cache lines, but for the chunk's end.
Chunk range_of(const Chunk& chunk, std::size_t element_bytes, std::size_t parts, std::size_t index);
// Rank's range of a chunk that the ranks reduce together.
Chunk range_of(const CollectiveArgs& args, const Chunk& chunk, int rank);
// Copies the chunk's ranges into this rank's output, rank r's from its source.
void collect_shares(const CollectiveArgs& args, const Chunk& chunk, std::span<const std::byte* const> sources);
// Reduces elements [chunk) of all ranks' memory and writes the result to each of `destinations`, which may be sources.
void reduce_into(const CollectiveArgs& args, const Chunk& chunk, std::span<const std::byte* const> sources,
                 std::span<std::byte* const> destinations, Scratch& scratch);

}  // namespace lockstep::comm
