// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/transfer.h"

#include <algorithm>

namespace lockstep::comm {
namespace {

std::byte* bytes_of(const BufferView& buffer) { return static_cast<std::byte*>(buffer.data); }

}  // namespace

bool is_source(const OpRecord& record, int rank) {
  switch (record.kind) {
    case OpKind::barrier:
    case OpKind::allocate: return false;
    case OpKind::broadcast:
    case OpKind::scatter: return rank == record.root;
    default: return true;
  }
}

bool is_reduction_in_place(OpKind kind) { return kind == OpKind::all_reduce || kind == OpKind::reduce; }

std::size_t source_parts(OpKind kind, int size) {
  switch (kind) {
    case OpKind::reduce_scatter:
    case OpKind::scatter:
    case OpKind::all_to_all: return static_cast<std::size_t>(size);
    default: return 1;
  }
}

std::size_t part_read(OpKind kind, int rank) { return source_parts(kind, 2) == 1 ? 0 : static_cast<std::size_t>(rank); }

void pull(const CollectiveArgs& args, const Chunk& chunk, const Sources& sources, Scratch& scratch) {
  const std::size_t element = args.element_bytes();
  const std::size_t bytes = chunk.length * element;
  const auto rank = static_cast<std::size_t>(args.rank);
  const auto size = static_cast<std::size_t>(args.size);
  const auto root = static_cast<std::size_t>(args.record.root);
  if (bytes == 0) return;
  const std::size_t part = part_read(args.record.kind, args.rank) * sources.part_stride;
  const auto source = [&](std::size_t r) {
    return r == rank && sources.own != nullptr ? sources.own : sources.base[r] + part;
  };
  // Some ranks of some operations have none.
  std::byte* const output = args.output.data == nullptr ? nullptr : bytes_of(args.output) + chunk.offset * element;
  switch (args.record.kind) {
    case OpKind::barrier:
    case OpKind::allocate: return;
    case OpKind::broadcast:
      if (rank != root) copy_bytes(output, source(root), bytes);
      return;
    case OpKind::scatter: return copy_bytes(output, source(root), bytes);
    case OpKind::gather:
      if (rank != root) return;
      [[fallthrough]];
    case OpKind::all_gather:
    case OpKind::all_to_all:
      for (std::size_t r = 0; r < size; ++r) copy_bytes(output + r * args.count() * element, source(r), bytes);
      return;
    case OpKind::reduce:
      if (rank != root) return;
      [[fallthrough]];
    case OpKind::all_reduce:
    case OpKind::reduce_scatter:
      scratch.sources.clear();
      for (std::size_t r = 0; r < size; ++r) scratch.sources.push_back(source(r));
      return reduce(args.reduction, scratch.sources, output, chunk.length);
  }
}

Chunk range_of(const Chunk& chunk, std::size_t element_bytes, std::size_t parts, std::size_t index) {
  const std::size_t line = 64 / element_bytes;
  const auto cut = [&](std::size_t i) { return i == parts ? chunk.length : chunk.length * i / parts / line * line; };
  return {chunk.offset + cut(index), cut(index + 1) - cut(index)};
}

Chunk range_of(const CollectiveArgs& args, const Chunk& chunk, int rank) {
  return range_of(chunk, args.element_bytes(), static_cast<std::size_t>(args.size), static_cast<std::size_t>(rank));
}

void collect_shares(const CollectiveArgs& args, const Chunk& chunk, std::span<const std::byte* const> sources) {
  const std::size_t element = args.element_bytes();
  std::byte* output = bytes_of(args.output) + chunk.offset * element;
  for (int i = 0; i < args.size; ++i) {
    const int r = (args.rank + i) % args.size;  // not all from one at once
    const Chunk range = range_of(args, {0, chunk.length}, r);
    const std::size_t at = range.offset * element;
    copy_bytes(output + at, sources[static_cast<std::size_t>(r)] + at, range.length * element);
  }
}

void reduce_into(const CollectiveArgs& args, const Chunk& chunk, std::span<const std::byte* const> sources,
                 std::span<std::byte* const> destinations, Scratch& scratch) {
  const std::size_t at = chunk.offset * args.element_bytes();
  scratch.sources.assign(sources.begin(), sources.end());
  scratch.destinations.assign(destinations.begin(), destinations.end());
  for (const std::byte*& source : scratch.sources) source += at;
  for (std::byte*& destination : scratch.destinations) destination += at;
  reduce(args.reduction, scratch.sources, scratch.destinations, chunk.length);
}

}  // namespace lockstep::comm
