// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/transfer.h"

#include <algorithm>
#include <cstring>

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

void stage(const Task& task, const Chunk& chunk, std::byte* to, std::size_t part_stride) {
  if (!is_source(task.record, task.rank)) return;
  const std::size_t element = task.element_bytes();
  const std::size_t parts = source_parts(task.record.kind, task.size);
  for (std::size_t part = 0; part < parts; ++part) {
    copy_bytes(to + part * part_stride, bytes_of(task.input) + (part * task.count() + chunk.offset) * element,
               chunk.length * element);
  }
}

void pull(const Task& task, const Chunk& chunk, const Sources& sources, Scratch& scratch) {
  const std::size_t element = task.element_bytes();
  const std::size_t bytes = chunk.length * element;
  const auto rank = static_cast<std::size_t>(task.rank);
  const auto size = static_cast<std::size_t>(task.size);
  const auto root = static_cast<std::size_t>(task.record.root);
  if (bytes == 0) return;
  // Some ranks of some operations have none.
  std::byte* const output = task.output.data == nullptr ? nullptr : bytes_of(task.output) + chunk.offset * element;
  switch (task.record.kind) {
    case OpKind::barrier:
    case OpKind::allocate: return;
    case OpKind::broadcast:
      if (rank != root) copy_bytes(output, sources.base[root], bytes);
      return;
    case OpKind::scatter: return copy_bytes(output, sources.base[root] + rank * sources.part_stride, bytes);
    case OpKind::gather:
      if (rank != root) return;
      [[fallthrough]];
    case OpKind::all_gather:
      for (std::size_t r = 0; r < size; ++r) copy_bytes(output + r * task.count() * element, sources.base[r], bytes);
      return;
    case OpKind::all_to_all:
      for (std::size_t r = 0; r < size; ++r) {
        copy_bytes(output + r * task.count() * element, sources.base[r] + rank * sources.part_stride, bytes);
      }
      return;
    case OpKind::reduce:
      if (rank != root) return;
      [[fallthrough]];
    case OpKind::all_reduce: return reduce(task.reduction, sources.base, output, chunk.length);
    case OpKind::reduce_scatter:
      scratch.sources.assign(sources.base.begin(), sources.base.end());
      for (const std::byte*& source : scratch.sources) source += rank * sources.part_stride;
      return reduce(task.reduction, scratch.sources, output, chunk.length);
  }
}

Chunk share_of(const Chunk& chunk, std::size_t element_bytes, std::size_t parts, std::size_t index) {
  const std::size_t line = 64 / element_bytes;
  const auto cut = [&](std::size_t i) { return i == parts ? chunk.length : chunk.length * i / parts / line * line; };
  return {chunk.offset + cut(index), cut(index + 1) - cut(index)};
}

Chunk share_of(const Task& task, const Chunk& chunk, int rank) {
  return share_of(chunk, task.element_bytes(), static_cast<std::size_t>(task.size), static_cast<std::size_t>(rank));
}

void collect_shares(const Task& task, const Chunk& chunk, std::span<const std::byte* const> sources) {
  const std::size_t element = task.element_bytes();
  std::byte* output = bytes_of(task.output) + chunk.offset * element;
  for (int r = 0; r < task.size; ++r) {
    const Chunk share = share_of(task, {0, chunk.length}, r);
    const std::size_t at = share.offset * element;
    copy_bytes(output + at, sources[static_cast<std::size_t>(r)] + at, share.length * element);
  }
}

void reduce_into(const Task& task, const Chunk& chunk, std::span<const std::byte* const> sources,
                 std::span<std::byte* const> destinations, Scratch& scratch) {
  const std::size_t at = chunk.offset * task.element_bytes();
  scratch.sources.assign(sources.begin(), sources.end());
  scratch.destinations.assign(destinations.begin(), destinations.end());
  for (const std::byte*& source : scratch.sources) source += at;
  for (std::byte*& destination : scratch.destinations) destination += at;
  reduce(task.reduction, scratch.sources, scratch.destinations, chunk.length);
}

}  // namespace lockstep::comm
