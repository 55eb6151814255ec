// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/wire/hierarchy.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>

#include "runtime/comm/reduction.h"

namespace lockstep::wire {
namespace {

using comm::Chunk;
using comm::Task;

// Bytes of a cable that a trip is taken to cost, and the largest share that every host adds up for itself.
constexpr std::size_t kBytesPerTrip = 16 << 10;
constexpr std::size_t kMostWhole = 1 << 20;

// This rank's part in one all-reduce.
class Lane {
 public:
  Lane(const Task& task, std::vector<std::byte*> memory, const Hosts& hosts, Wire& wire, ScratchBuffer& scratch)
      : task_(task), memory_(std::move(memory)), hosts_(hosts), wire_(wire), scratch_(scratch) {}

  void reduce(const Chunk& chunk) const {
    const Chunk share = comm::share_of(chunk, element_, hosts_.lanes, hosts_.local);
    if (share.length == 0) return;
    add_up_host(share);
    exchange(share);
    spread(share);
  }

 private:
  std::byte* at(std::size_t local, const Chunk& part) const { return memory_[local] + part.offset * element_; }
  std::byte* own(const Chunk& part) const { return at(hosts_.local, part); }
  Chunk part_of(const Chunk& share, std::size_t host) const {
    return comm::share_of(share, element_, hosts_.ranks.size(), host);
  }
  int rank_on(std::size_t host) const { return hosts_.ranks[host][hosts_.local]; }

  // The host's sum, in this rank's memory: no other rank reads or writes its share there.
  void add_up_host(const Chunk& share) const {
    std::vector<const std::byte*> sources;
    for (std::size_t i = 0; i < memory_.size(); ++i) sources.push_back(at(i, share));
    const comm::Reduction sum{.dtype = task_.reduction.dtype, .op = task_.reduction.op};
    comm::reduce(sum, sources, own(share), share.length);
  }

  void exchange(const Chunk& share) const {
    if (goes_whole(share)) return exchange_whole(share);
    exchange_parts(share);
  }

  // True where one trip of the whole share to every host costs less than two of its parts.
  bool goes_whole(const Chunk& share) const {
    const std::size_t bytes = share.length * element_;
    const std::size_t count = hosts_.ranks.size();
    return bytes <= kMostWhole && bytes * (count - 1) * (count - 2) / count <= kBytesPerTrip;
  }

  // Every host's sum of the share comes here, and is added up on each host: in one order, so to the same bits.
  void exchange_whole(const Chunk& share) const {
    const std::size_t count = hosts_.ranks.size();
    const std::size_t bytes = share.length * element_;
    const std::size_t stride = (bytes + 63) / 64 * 64;
    std::byte* const theirs = scratch_.take(stride * count);
    std::vector<Piece> sends, recvs;
    std::vector<const std::byte*> sources(count);
    sources[hosts_.host] = own(share);
    for (std::size_t i = 1; i < count; ++i) {
      const std::size_t host = (hosts_.host + i) % count;
      sends.push_back({rank_on(host), own(share), bytes});
      recvs.push_back({rank_on(host), theirs + host * stride, bytes});
      sources[host] = theirs + host * stride;
    }
    go(sends, recvs);
    comm::reduce(task_.reduction, sources, own(share), share.length);
  }

  // The hosts' sums of this rank's part come here and are reduced; the result goes to the lane.
  void exchange_parts(const Chunk& share) const {
    const std::size_t count = hosts_.ranks.size();
    const Chunk mine = part_of(share, hosts_.host);
    const std::size_t stride = (mine.length * element_ + 63) / 64 * 64;
    std::byte* const theirs = scratch_.take(stride * count);
    std::vector<Piece> sends, recvs;
    const auto add = [&](std::vector<Piece>& pieces, std::size_t host, std::byte* data, const Chunk& part) {
      if (part.length > 0) pieces.push_back({rank_on(host), data, part.length * element_});
    };
    std::vector<const std::byte*> sources(count);
    sources[hosts_.host] = own(mine);
    for (std::size_t i = 1; i < count; ++i) {
      const std::size_t host = (hosts_.host + i) % count;
      add(sends, host, own(part_of(share, host)), part_of(share, host));
      add(recvs, host, theirs + host * stride, mine);
      sources[host] = theirs + host * stride;
    }
    go(sends, recvs);
    comm::reduce(task_.reduction, sources, own(mine), mine.length);
    sends.clear();
    recvs.clear();
    for (std::size_t i = 1; i < count; ++i) {
      const std::size_t host = (hosts_.host + i) % count;
      add(sends, host, own(mine), mine);
      add(recvs, host, own(part_of(share, host)), part_of(share, host));
    }
    go(sends, recvs);
  }

  void spread(const Chunk& share) const {
    for (std::size_t i = 1; i < memory_.size(); ++i) {
      const std::size_t local = (hosts_.local + i) % memory_.size();
      comm::copy_bytes(at(local, share), own(share), share.length * element_);
    }
  }

  void go(std::span<const Piece> sends, std::span<const Piece> recvs) const {
    if (!sends.empty() || !recvs.empty()) wire::exchange(wire_, sends, recvs);
  }

  const Task& task_;
  const std::size_t element_ = task_.element_bytes();
  const std::vector<std::byte*> memory_;  // of the host's ranks
  const Hosts& hosts_;
  Wire& wire_;
  ScratchBuffer& scratch_;
};

bool sums_in_parts(const Task& task) {
  switch (task.record.dtype) {
    case DType::f32:
    case DType::f64: return true;
    case DType::f16:
    case DType::bf16: return false;
    default: return !task.record.weighted && task.record.op != ReduceOp::avg;
  }
}

}  // namespace

Hosts hosts_of(const rendezvous::Roster& roster, int rank) {
  Hosts hosts;
  for (int r = 0; r < static_cast<int>(roster.size()); ++r) {
    const std::vector<int> beside = rendezvous::ranks_beside(roster, r);
    if (beside.front() == r) hosts.ranks.push_back(beside);
  }
  hosts.lanes = roster.size();
  for (std::size_t host = 0; host < hosts.ranks.size(); ++host) {
    const auto& ranks = hosts.ranks[host];
    hosts.lanes = std::min(hosts.lanes, ranks.size());
    const auto found = std::find(ranks.begin(), ranks.end(), rank);
    if (found == ranks.end()) continue;
    hosts.host = host;
    hosts.local = static_cast<std::size_t>(found - ranks.begin());
  }
  return hosts;
}

bool has_hierarchy(const Hosts& hosts) {
  return hosts.ranks.size() > 1 &&
         std::any_of(hosts.ranks.begin(), hosts.ranks.end(), [](const auto& ranks) { return ranks.size() > 1; });
}

std::size_t window_bytes(const Hosts& hosts) {
  std::size_t most = 1;
  for (const auto& ranks : hosts.ranks) most = std::max(most, ranks.size());
  constexpr std::size_t kAlignment = 4096;  // a page
  return std::clamp<std::size_t>((32u << 20) / most / kAlignment * kAlignment, 256 << 10, 2 << 20);
}

bool keeps_rank_order(const Hosts& hosts) {
  const std::size_t each = hosts.ranks.front().size();
  int next = 0;
  for (const std::vector<int>& ranks : hosts.ranks) {
    if (ranks.size() != each || !std::has_single_bit(each)) return false;
    for (const int rank : ranks) {
      if (rank != next++) return false;
    }
  }
  return true;
}

std::vector<std::byte> written(const comm::Place& place) {
  const auto bytes = std::as_bytes(std::span(&place, 1));
  return {bytes.begin(), bytes.end()};
}

bool goes_by_hosts(const Task& task) { return task.record.kind == comm::OpKind::all_reduce && sums_in_parts(task); }

std::optional<std::vector<comm::Place>> places_in(const Arrivals& arrivals) {
  std::vector<comm::Place> places(arrivals.size());
  for (std::size_t r = 0; r < arrivals.size(); ++r) {
    if (arrivals[r]->payload.size() != sizeof(comm::Place)) return std::nullopt;
    std::memcpy(&places[r], arrivals[r]->payload.data(), sizeof(comm::Place));
    if (places[r].arena < 0) return std::nullopt;
  }
  return places;
}

void all_reduce_by_hosts(const Task& task, const std::optional<std::vector<comm::Place>>& places, const Hosts& hosts,
                         HostMemory& memory, Wire& wire, ScratchBuffer& scratch) {
  std::vector<std::byte*> of_host;
  for (std::size_t i = 0; i < hosts.neighbours().size(); ++i) {
    of_host.push_back(places ? memory.address(i, (*places)[static_cast<std::size_t>(hosts.neighbours()[i])])
                             : memory.window(i));
  }
  const bool carries = hosts.local < hosts.lanes;
  const Lane lane(task, std::move(of_host), hosts, wire, scratch);
  const std::size_t element = task.element_bytes();
  if (places) {
    const std::size_t most = kReductionBytes / element * hosts.lanes;
    for (std::size_t offset = 0; carries && offset < task.count(); offset += most) {
      lane.reduce({offset, std::min(most, task.count() - offset)});
    }
    // Then all of this rank's memory has its result, and nobody reads it any more.
    return memory.barrier();
  }
  const std::size_t most = window_bytes(hosts) / element;
  auto* const data = static_cast<std::byte*>(task.output.data);
  for (std::size_t offset = 0; offset < task.count(); offset += most) {
    const std::size_t length = std::min(most, task.count() - offset);
    comm::copy_bytes(memory.window(hosts.local), data + offset * element, length * element);
    memory.barrier();  // all windows are full
    if (carries) lane.reduce({0, length});
    memory.barrier();  // as above, of the window
    comm::copy_bytes(data + offset * element, memory.window(hosts.local), length * element);
  }
}

}  // namespace lockstep::wire
