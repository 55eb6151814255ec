// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ddp/replica_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/device/device_runtime.h"
#include "lockstep/rendezvous/roster.h"
#include "runtime/base/hash.h"
#include "runtime/comm/disagreement.h"
#include "runtime/comm/group_internals.h"
#include "runtime/ddp/equality/gather_numbers.h"

namespace lockstep {
namespace {

// The number of bytes that are copied from a device to the host at once.
constexpr std::size_t kPiece = 4 << 20;
// The time limit of a copy from a device. A limit is needed because a copy from a failed device never ends.
constexpr std::chrono::minutes kCopyPatience{5};

std::uint64_t hash_on_device(const BufferView& value, StreamView stream, std::uint64_t seed) {
  if (value.device != stream.device) stream = {value.device, nullptr};
  DeviceRuntime& runtime = device_runtime(value.device.kind);
  const Deadline deadline = Deadline::after(kCopyPatience);
  Hasher64 hasher(seed);
  const auto piece = runtime.allocate_pinned(std::min(kPiece, value.bytes()), value.device);
  for (std::size_t at = 0; at < value.bytes(); at += kPiece) {
    const std::size_t bytes = std::min(kPiece, value.bytes() - at);
    runtime.copy(piece.get(), static_cast<const std::byte*>(value.data) + at, bytes, stream);
    runtime.synchronize(stream, deadline);
    hasher.add(piece.get(), bytes);
  }
  return hasher.value();
}

std::uint64_t hash_buffer(const NamedBuffer& buffer, StreamView stream) {
  const std::uint64_t header =
      hash64(fmt::format("{} {} {}", name_of(buffer.value.dtype), buffer.value.count, buffer.name));
  if (buffer.value.device.kind != DeviceKind::cpu && buffer.value.count > 0) {
    return hash_on_device(buffer.value, stream, header);
  }
  return hash64(buffer.value.data, buffer.value.bytes(), header);
}

std::vector<std::uint64_t> hash_buffers(std::span<const NamedBuffer> buffers, StreamView stream) {
  std::vector<std::uint64_t> hashes;
  for (const NamedBuffer& buffer : buffers) hashes.push_back(hash_buffer(buffer, stream));
  return hashes;
}

std::uint64_t combine(std::span<const std::uint64_t> hashes) { return hash64(hashes.data(), hashes.size_bytes()); }

// Returns the ranks whose value differs from the value that most ranks have. If several values are equally frequent,
// the value of the lowest rank counts as the most frequent value.
std::vector<int> outliers(std::span<const std::uint64_t> by_rank) {
  std::map<std::uint64_t, std::size_t> votes;
  for (const std::uint64_t value : by_rank) ++votes[value];
  std::uint64_t common = by_rank.front();
  for (const std::uint64_t value : by_rank) {
    if (votes[value] > votes[common]) common = value;
  }
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (by_rank[rank] != common) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

// Returns a text that names the ranks with an unusual value, such as "rank 2 differs from the others".
std::string describe_outliers(std::span<const std::uint64_t> by_rank) {
  const std::vector<int> ranks = outliers(by_rank);
  if (by_rank.size() == 2) return "ranks 0 and 1 differ";  // nobody knows which one is wrong
  return fmt::format("{} {} from the others", rendezvous::describe_ranks(ranks),
                     ranks.size() == 1 ? "differs" : "differ");
}

void describe_first_difference(ProcessGroup& group, std::span<const NamedBuffer> buffers,
                               const std::vector<std::uint64_t>& hashes, ReplicaComparison& comparison) {
  const auto ranks = static_cast<std::size_t>(group.size());
  const std::vector<std::uint64_t> all = gather_numbers(group, hashes);
  std::vector<std::uint64_t> of_parameter(ranks);
  std::size_t differing = 0;
  std::string first;
  for (std::size_t p = 0; p < hashes.size(); ++p) {
    for (std::size_t rank = 0; rank < ranks; ++rank) of_parameter[rank] = all[rank * hashes.size() + p];
    if (outliers(of_parameter).empty()) continue;
    if (differing++ > 0) continue;
    comparison.parameter = buffers[p].name;
    first = fmt::format("parameter {}, '{}': {}", p, buffers[p].name, describe_outliers(of_parameter));
  }
  comparison.difference = fmt::format("{} of {} parameters differ, the first is {}", differing, hashes.size(), first);
}

}  // namespace

std::uint64_t hash_replica(std::span<const NamedBuffer> buffers, StreamView stream) {
  return combine(hash_buffers(buffers, stream));
}

ReplicaComparison compare_replicas(ProcessGroup& group, std::span<const NamedBuffer> buffers) {
  const std::vector<std::uint64_t> hashes = hash_buffers(buffers, group.stream());
  const std::uint64_t mine = combine(hashes);
  const std::vector<std::uint64_t> all = gather_numbers(group, {mine, hashes.size()});
  std::vector<std::uint64_t> hash_by_rank, count_by_rank;
  for (std::size_t i = 0; i < all.size(); i += 2) {
    hash_by_rank.push_back(all[i]);
    count_by_rank.push_back(all[i + 1]);
  }
  if (!outliers(count_by_rank).empty()) {
    comm::throw_disagreement(group, fmt::format("replica check: {}: the ranks passed different numbers of parameters, "
                                                "by rank {}; pass the same parameters on all ranks",
                                                describe_outliers(count_by_rank), fmt::join(count_by_rank, ", ")));
  }
  ReplicaComparison comparison{.hash = mine, .ranks = outliers(hash_by_rank)};
  if (!comparison.are_equal()) {
    describe_first_difference(group, buffers, hashes, comparison);
    barrier_before_throw(group);
  }
  return comparison;
}

std::string describe_divergence(const ReplicaComparison& comparison, std::string_view when) {
  return fmt::format(
      "replica check: the replicas are not equal any more{}: {}. Look for a step that one rank takes and another does "
      "not, and for random numbers or threads that depend on the rank",
      when, comparison.difference);
}

std::uint64_t check_replicas(ProcessGroup& group, std::span<const NamedBuffer> buffers) {
  const ReplicaComparison comparison = compare_replicas(group, buffers);
  if (!comparison.are_equal()) {
    group.internals().note_apart();
    comm::throw_disagreement(group, describe_divergence(comparison));
  }
  return comparison.hash;
}

}  // namespace lockstep
