// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/wire/movement.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace lockstep::wire {
namespace {

using comm::Chunk;
using comm::CollectiveArgs;
using comm::OpKind;

std::byte* bytes_of(const BufferView& buffer) { return static_cast<std::byte*>(buffer.data); }
const std::byte* bytes_of(const ConstBufferView& buffer) { return static_cast<const std::byte*>(buffer.data); }

// Pieces collects the pieces of one exchange.
class Pieces {
 public:
  explicit Pieces(const CollectiveArgs& args) : args_(args) {}

  void send(int peer, const std::byte* data, std::size_t bytes) { add(sends_, peer, data, bytes); }
  void recv(int peer, std::byte* data, std::size_t bytes) { add(recvs_, peer, data, bytes); }
  // Calls what(peer) for the other ranks. Each rank calls what() first for the rank after its own rank, so that not all
  // ranks begin with the same peer.
  template <typename What>
  void for_others(What what) const {
    for (int i = 1; i < args_.size; ++i) what((args_.rank + i) % args_.size);
  }
  void go(Wire& wire) const {
    if (!sends_.empty() || !recvs_.empty()) exchange(wire, sends_, recvs_);
  }

 private:
  template <typename Byte>
  void add(std::vector<BasicPiece<Byte>>& pieces, int peer, Byte* data, std::size_t bytes) const {
    if (bytes > 0 && peer != args_.rank) pieces.push_back({peer, data, bytes});
  }

  const CollectiveArgs& args_;
  std::vector<ConstPiece> sends_;
  std::vector<Piece> recvs_;
};

// Reduces the elements of `chunk` of all ranks' inputs into the root's output; each rank reduces one range of
// the elements.
void reduce_chunk(const CollectiveArgs& args, const Chunk& chunk, Wire& wire, ScratchBuffer& scratch) {
  const std::size_t element = args.element_bytes();
  const Chunk own = range_of(args, chunk, args.rank);
  const std::size_t stride = (own.length * element + 63) / 64 * 64;
  std::byte* const others = scratch.take(stride * static_cast<std::size_t>(args.size));
  const auto at = [&](const auto& buffer, const Chunk& part) { return bytes_of(buffer) + part.offset * element; };
  const auto place_of = [&](int r) { return others + static_cast<std::size_t>(r) * stride; };

  Pieces collect(args);
  collect.for_others([&](int r) {
    const Chunk theirs = range_of(args, chunk, r);
    collect.send(r, at(args.input, theirs), theirs.length * element);
    collect.recv(r, place_of(r), own.length * element);
  });
  collect.go(wire);

  std::vector<const std::byte*> sources;
  for (int r = 0; r < args.size; ++r) sources.push_back(r == args.rank ? at(args.input, own) : place_of(r));
  // A rank that is not the root must keep the values of its buffer, so the rank's result goes into scratch memory.
  std::byte* const result = args.rank == args.record.root ? at(args.output, own) : place_of(args.rank);
  comm::reduce(args.reduction, sources, result, own.length);

  Pieces spread(args);
  spread.for_others([&](int r) {
    const Chunk theirs = range_of(args, chunk, r);
    if (r == args.record.root) spread.send(r, result, own.length * element);
    if (args.rank == args.record.root) spread.recv(r, at(args.output, theirs), theirs.length * element);
  });
  spread.go(wire);
}

// In a broadcast with two ranks, the root sends all data to the other rank. In a broadcast with more ranks, every rank
// gets one range from the root and passes the range on to the other ranks, so that the root sends the data only once.
void broadcast(const CollectiveArgs& args, Wire& wire) {
  const std::size_t element = args.element_bytes();
  const Chunk all{0, args.count()};
  const int root = args.record.root;
  const auto range = [&](int r) { return args.size == 2 ? all : range_of(args, all, r); };
  const auto at = [&](const Chunk& part) { return bytes_of(args.output) + part.offset * element; };

  Pieces scatter(args);
  if (args.rank == root) {
    scatter.for_others([&](int r) { scatter.send(r, at(range(r)), range(r).length * element); });
  } else {
    scatter.recv(root, at(range(args.rank)), range(args.rank).length * element);
  }
  scatter.go(wire);
  if (args.size == 2) return;

  Pieces spread(args);
  spread.for_others([&](int r) {
    if (r != root) spread.send(r, at(range(args.rank)), range(args.rank).length * element);
    if (args.rank != root) spread.recv(r, at(range(r)), range(r).length * element);
  });
  spread.go(wire);
}

void reduce_scatter(const CollectiveArgs& args, const Hosts* hosts, Wire& wire, ScratchBuffer& scratch) {
  const std::size_t element = args.element_bytes();
  const std::size_t most = std::max<std::size_t>(1, kReductionBytes / static_cast<std::size_t>(args.size) / element);
  const auto part_of = [&](int r, std::size_t offset) {
    return bytes_of(args.input) + (static_cast<std::size_t>(r) * args.count() + offset) * element;
  };
  for (std::size_t offset = 0; offset < args.count(); offset += most) {
    const std::size_t length = std::min(most, args.count() - offset);
    const std::size_t stride = (length * element + 63) / 64 * 64;
    std::byte* const others = scratch.take(stride * static_cast<std::size_t>(args.size));
    std::vector<const std::byte*> sources(static_cast<std::size_t>(args.size));
    Pieces pieces(args);
    sources[static_cast<std::size_t>(args.rank)] = part_of(args.rank, offset);
    pieces.for_others([&](int r) {
      std::byte* const place = others + static_cast<std::size_t>(r) * stride;
      sources[static_cast<std::size_t>(r)] = place;
      pieces.send(r, part_of(r, offset), length * element);
      pieces.recv(r, place, length * element);
    });
    pieces.go(wire);
    reduce_by_hosts(args.reduction, hosts, sources, bytes_of(args.output) + offset * element, length);
  }
}

// Moves data without a reduction: part j of rank i's input becomes part i of rank j's output.
void pass_on(const CollectiveArgs& args, Wire& wire) {
  const std::size_t part = args.count() * args.element_bytes();
  const OpKind kind = args.record.kind;
  const bool many_inputs = comm::source_parts(kind, args.size) > 1;
  const bool many_outputs = kind == OpKind::all_gather || kind == OpKind::gather || kind == OpKind::all_to_all;
  const auto input = [&](int r) {
    return bytes_of(args.input) + (many_inputs ? static_cast<std::size_t>(r) * part : 0);
  };
  const auto output = [&](int r) {
    return bytes_of(args.output) + (many_outputs ? static_cast<std::size_t>(r) * part : 0);
  };
  const auto gives = [&](int r) { return comm::is_source(args.record, r); };
  const auto gets = [&](int r) { return kind != OpKind::gather || r == args.record.root; };

  if (gives(args.rank) && gets(args.rank)) comm::copy_bytes(output(args.rank), input(args.rank), part);
  Pieces pieces(args);
  pieces.for_others([&](int r) {
    if (gives(args.rank) && gets(r)) pieces.send(r, input(r), part);
    if (gives(r) && gets(args.rank)) pieces.recv(r, output(r), part);
  });
  pieces.go(wire);
}

}  // namespace

void reduce_by_hosts(const comm::Reduction& reduction, const Hosts* hosts, std::span<const std::byte* const> sources,
                     std::byte* result, std::size_t count) {
  if (hosts == nullptr) return comm::reduce(reduction, sources, result, count);
  const std::size_t stride = (count * size_of(comm::dtype_of_partials(reduction)) + 63) / 64 * 64;
  ScratchBuffer scratch;
  std::byte* partial = scratch.take(stride * hosts->ranks.size());
  std::vector<const std::byte*> partials, of_host;
  for (const std::vector<int>& ranks : hosts->ranks) {
    of_host.clear();
    for (const int rank : ranks) of_host.push_back(sources[static_cast<std::size_t>(rank)]);
    comm::reduce_to_partial(reduction, of_host, partial, count);
    partials.push_back(std::exchange(partial, partial + stride));
  }
  comm::reduce_partials(reduction, partials, std::span(&result, 1), count);
}

void move(const CollectiveArgs& args, const Hosts* hosts, Wire& wire, ScratchBuffer& scratch) {
  switch (args.record.kind) {
    case OpKind::barrier:
    case OpKind::allocate:
    case OpKind::all_reduce: return;  // all_reduce goes by segments (segment_pipeline.h)
    case OpKind::reduce: {
      const std::size_t most = kReductionBytes / args.element_bytes();
      for (std::size_t offset = 0; offset < args.count(); offset += most) {
        reduce_chunk(args, {offset, std::min(most, args.count() - offset)}, wire, scratch);
      }
      return;
    }
    case OpKind::broadcast: return broadcast(args, wire);
    case OpKind::reduce_scatter: return reduce_scatter(args, hosts, wire, scratch);
    case OpKind::all_gather:
    case OpKind::gather:
    case OpKind::scatter:
    case OpKind::all_to_all: return pass_on(args, wire);
  }
}

}  // namespace lockstep::wire
