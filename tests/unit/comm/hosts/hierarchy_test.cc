// SPDX-License-Identifier: Apache-2.0
// What a group over several hosts computes, to the bit, and what crosses their cables for it.
// tests/conformance runs every collective and dtype on hosts, in arenas.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <latch>
#include <type_traits>

#include "lockstep/base/error.h"
#include "lockstep/device/dtype.h"
#include "runtime/comm/reduction.h"
#include "runtime/comm/wire/op_header_table.h"
#include "tests/support/error_of.h"
#include "tests/support/limited_to.h"
#include "tests/unit/comm/hosts/fake_hosts.h"

namespace lockstep::wire::hierarchy_test {
namespace {

using lockstep::testing::expect_failure;
using ::testing::Le;
using ::testing::Pointwise;
using HostSizes = std::vector<int>;  // the ranks of each host

const ReductionOptions kWeighted{.weight = 3};  // of rank 0; rank r's is 3 + r
const ReductionOptions kMean{.op = ReduceOp::avg};

template <typename T>
std::vector<T> values_of(int rank, std::size_t count) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    if constexpr (std::is_same_v<T, bfloat16>) {
      values[i] = to_bfloat16(noise(rank, i));
    } else if constexpr (std::is_same_v<T, float16>) {
      values[i] = to_float16(noise(rank, i));
    } else if constexpr (std::is_floating_point_v<T>) {
      values[i] = noise(rank, i);
    } else {
      values[i] = static_cast<T>((i * 2654435761u + static_cast<std::size_t>(rank) * 40503) >> 1);
    }
  }
  return values;
}

// As one host would reduce it.
template <typename T>
std::vector<T> on_one_host(int ranks, std::size_t count, const ReductionOptions& options) {
  std::vector<std::vector<T>> inputs;
  std::vector<const std::byte*> sources;
  comm::Reduction reduction{.dtype = dtype_of<T>(), .op = options.op};
  if (options.op == ReduceOp::avg) reduction.divisor = ranks;
  if (options.weight) reduction.divisor = ranks * *options.weight + ranks * (ranks - 1) / 2;
  for (int r = 0; r < ranks; ++r) inputs.push_back(values_of<T>(r, count));
  for (const auto& input : inputs) sources.push_back(reinterpret_cast<const std::byte*>(input.data()));
  std::vector<T> result(count);
  comm::reduce(reduction, sources, reinterpret_cast<std::byte*>(result.data()), count);
  return result;
}

// What an all-reduce comes to on each rank: where all are in an arena, where none is, and where only rank 1's is not.
template <typename T>
std::vector<std::vector<T>> all_reduced(const HostSizes& hosts, std::size_t count, const ReductionOptions& options) {
  const std::size_t ranks = roster_of(hosts).size();
  std::vector<std::vector<T>> results(3 * ranks);
  on_hosts(hosts, [&](ProcessGroup& group, const Hub&) {
    const auto rank = static_cast<std::size_t>(group.rank());
    ReductionOptions own_options = options;
    if (options.weight) own_options.weight = *options.weight + group.rank();
    const std::vector<T> own = values_of<T>(group.rank(), count);
    // Each rank gives another place of its memory.
    const Arena arena = group.allocate((count + 37 * ranks) * sizeof(T));
    const std::span<T> in_arena(reinterpret_cast<T*>(arena.data) + 37 * rank, count);
    for (std::size_t place = 0; place < 3; ++place) {
      std::vector<T>& result = results[place * ranks + rank];
      result = own;
      const bool is_in_arena = place == 0 || (place == 2 && rank != 1);
      std::copy(own.begin(), own.end(), in_arena.begin());
      group.all_reduce(BufferView(is_in_arena ? in_arena : std::span(result)), own_options).wait();
      if (is_in_arena) result.assign(in_arena.begin(), in_arena.end());
    }
    const auto is_zero = [](std::byte byte) { return byte == std::byte{}; };
    const auto bytes = std::as_writable_bytes(in_arena);
    EXPECT_TRUE(std::all_of(arena.data, bytes.data(), is_zero)) << "what is before it is not touched";
    EXPECT_TRUE(std::all_of(bytes.data() + bytes.size(), arena.data + arena.bytes, is_zero));
  });
  return results;
}

template <typename T>
void expect_each_is(const std::vector<T>& wanted, const std::vector<std::vector<T>>& results, const HostSizes& hosts) {
  for (std::size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(std::memcmp(results[i].data(), wanted.data(), wanted.size() * sizeof(T)), 0)
        << text_of(hosts) << ", " << name_of(dtype_of<T>()) << " x " << wanted.size() << ", result " << i;
  }
}

template <typename T>
void expect_bits_of_one_host(const HostSizes& hosts, std::size_t count, const ReductionOptions& options) {
  const int ranks = static_cast<int>(roster_of(hosts).size());
  expect_each_is(on_one_host<T>(ranks, count, options), all_reduced<T>(hosts, count, options), hosts);
}

TEST(Hierarchy, SumsOfEqualPowersOfTwoHaveTheBitsOfOneHost) {
  for (const HostSizes& hosts : {HostSizes{1, 1}, {2, 2}, {4, 4}, {1, 1, 1}, {2, 2, 2}, {4, 4, 4}}) {
    expect_bits_of_one_host<float>(hosts, kCount, {});
    expect_bits_of_one_host<float>(hosts, kCount, kWeighted);
    // What is rounded, or divided, once crosses hosts as it is accumulated.
    expect_bits_of_one_host<bfloat16>(hosts, 1031, {});
    expect_bits_of_one_host<bfloat16>(hosts, kCount, kWeighted);
    expect_bits_of_one_host<float16>(hosts, 1031, kWeighted);
    expect_bits_of_one_host<float16>(hosts, kCount, {.op = ReduceOp::max});
    expect_bits_of_one_host<bfloat16>(hosts, 1031, {.op = ReduceOp::product});
    expect_bits_of_one_host<double>(hosts, 1031, {.op = ReduceOp::min});
    expect_bits_of_one_host<double>(hosts, 1031, kMean);
    expect_bits_of_one_host<std::int32_t>(hosts, kCount, kMean);
    expect_bits_of_one_host<std::int64_t>(hosts, kCount, kMean);
    expect_bits_of_one_host<std::uint8_t>(hosts, kCount, kMean);
  }
}

// The small ones take one trip, the large ones two, and several segments, and more than a window holds. Of three hosts
// and of four the small ones end at another size.
TEST(Hierarchy, SumsOfEverySizeHaveTheBitsOfOneHost) {
  for (const HostSizes& hosts : {HostSizes{2, 2}, {2, 2, 2}, {2, 2, 2, 2}, {1, 1, 1, 1, 1}}) {
    for (const std::size_t count :
         {std::size_t{100}, std::size_t{257}, std::size_t{4097}, std::size_t{9000}, std::size_t{700001}}) {
      expect_bits_of_one_host<float>(hosts, count, {});
    }
  }
  expect_bits_of_one_host<bfloat16>({2, 2}, 500009, kWeighted);
  expect_bits_of_one_host<float16>({2, 2, 2}, 300007, {});
  expect_bits_of_one_host<float>({4, 4}, (std::size_t{5} << 20) / sizeof(float) + 3, kWeighted);
}

// The order of addition is another where hosts are, which integers do not show.
TEST(Hierarchy, SumsAreTheSameOnAllRanksOfAnyHostsAndFromRunToRun) {
  for (const HostSizes& hosts : {HostSizes{1, 3, 2}, {3, 1}, {3, 3}, {2, 5}}) {
    expect_bits_of_one_host<std::int32_t>(hosts, kCount, kMean);
    const auto sums = all_reduced<float>(hosts, kCount, {});
    expect_each_is(sums[0], sums, hosts);
    const auto means = all_reduced<bfloat16>(hosts, kCount, kWeighted);
    expect_each_is(means[0], means, hosts);
    expect_each_is(means[0], all_reduced<bfloat16>(hosts, kCount, kWeighted), hosts);
  }
}

// A few elements travel with the announcement, more in segments: the order of addition is the same.
template <typename T>
void expect_the_same_bits_of_all_sizes(const HostSizes& hosts, const ReductionOptions& options) {
  SCOPED_TRACE(text_of(hosts) + ", " + std::string(name_of(dtype_of<T>())));
  constexpr std::size_t kMost = 10007;
  on_hosts(hosts, [&](ProcessGroup& group, const Hub&) {
    const auto size = static_cast<std::size_t>(group.size());
    const std::vector<T> input = values_of<T>(group.rank(), kMost * size);
    std::vector<T> whole = input;
    group.all_reduce(BufferView(std::span(whole)), options).wait();
    for (const std::size_t count : {std::size_t{1}, std::size_t{16}, std::size_t{60}, std::size_t{255},
                                    std::size_t{256}, std::size_t{257}, std::size_t{511}, std::size_t{513}, kMost}) {
      const auto begin = input.begin();
      std::vector<T> part(begin, begin + static_cast<std::ptrdiff_t>(count));
      group.all_reduce(BufferView(std::span(part)), options).wait();
      EXPECT_EQ(std::memcmp(part.data(), whole.data(), count * sizeof(T)), 0) << count;
      std::copy_n(begin, count, part.begin());
      if (!options.weight) {
        group.reduce(BufferView(std::span(part)), 1, options.op).wait();
        const T* const wanted = group.rank() == 1 ? whole.data() : input.data();
        EXPECT_EQ(std::memcmp(part.data(), wanted, count * sizeof(T)), 0) << "reduce " << count;
      }
      std::vector<T> row(count);
      std::vector<T> rows(begin, begin + static_cast<std::ptrdiff_t>(count * size));
      group.reduce_scatter(BufferView(std::span(rows)), BufferView(std::span(row)), options).wait();
      const T* const own = whole.data() + static_cast<std::size_t>(group.rank()) * count;
      EXPECT_EQ(std::memcmp(row.data(), own, count * sizeof(T)), 0) << "reduce_scatter " << count;
      EXPECT_EQ(std::memcmp(rows.data(), input.data(), rows.size() * sizeof(T)), 0) << "an input is kept";
    }
  });
}

TEST(Hierarchy, SumsOfAnySizeAddUpInOneOrder) {
  for (const HostSizes& hosts : {HostSizes{1, 2}, {1, 3}, {3, 2}, {3, 3}, {2, 2}, {1, 1, 1}, {1, 3, 2}}) {
    expect_the_same_bits_of_all_sizes<float>(hosts, {});
    expect_the_same_bits_of_all_sizes<double>(hosts, kWeighted);
    expect_the_same_bits_of_all_sizes<bfloat16>(hosts, kMean);
    expect_the_same_bits_of_all_sizes<float16>(hosts, {.op = ReduceOp::max});
  }
}

// In the program's own memory, in which slots of windows are taken again and again, and all under way at once. Of one
// trip, of two, of several segments; every rank is root once, of several segments two are.
TEST(Hierarchy, WhatIsHandedRoundComesToEveryRank) {
  for (const HostSizes& hosts : {HostSizes{2, 2}, {2, 2, 2}, {1, 3, 2}, {2, 3, 2}}) {
    const auto ranks = roster_of(hosts).size();
    for (const std::size_t count : {std::size_t{300}, kCount, std::size_t{270007}}) {
      SCOPED_TRACE(text_of(hosts) + ", " + std::to_string(count));
      std::vector<float> all;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const std::vector<float> row = noise_of(static_cast<int>(rank), count);
        all.insert(all.end(), row.begin(), row.end());
      }
      on_hosts(hosts, [&](ProcessGroup& group, const Hub&) {
        const auto row_of = [&](std::size_t rank) {
          return std::vector<float>(&all[rank * count], &all[rank * count] + count);
        };
        const auto rank = static_cast<std::size_t>(group.rank());
        std::vector<float> ones(all.size(), 1.0f), row = row_of(rank);
        std::vector<std::vector<float>> roots(ranks, std::vector<float>(count)), rows(ranks), shares = roots;
        roots[rank] = row;
        std::vector<Work> works;
        for (std::size_t root = 0; root<ranks; root += count> kCount ? 3 : 1) {
          rows[root].resize(all.size());
          works.push_back(group.broadcast(BufferView(std::span(roots[root])), static_cast<int>(root)));
          works.push_back(group.all_gather(BufferView(std::span(row)), BufferView(std::span(rows[root]))));
          works.push_back(group.reduce_scatter(BufferView(std::span(ones)), BufferView(std::span(shares[root]))));
        }
        for (auto work = works.rbegin(); work != works.rend(); ++work) work->wait();
        for (std::size_t root = 0; root<ranks; root += count> kCount ? 3 : 1) {
          EXPECT_EQ(roots[root], row_of(root)) << "rank " << rank << " from " << root;
          EXPECT_EQ(rows[root], all);
          EXPECT_EQ(shares[root], std::vector<float>(count, static_cast<float>(ranks)));
        }
      });
    }
  }
}

// All but the first segment of all-reduces that follow each other are on their way while that one's data does not come.
TEST(Hierarchy, SegmentsAndAllReducesAreUnderWayAtOnce) {
  constexpr std::size_t kFloats = (std::size_t{9} << 20) / sizeof(float);  // several segments
  for (const bool is_in_arena : {true, false}) {
    std::latch checked(4), over(3);
    on_hosts({2, 2}, [&](ProcessGroup& group, const Hub& hub) {
      const Arena arena = group.allocate((kFloats + kCount) * sizeof(float));
      std::vector<float> own(is_in_arena ? 0 : kFloats + kCount);
      const std::span<float> data = is_in_arena ? floats_of(arena) : std::span(own);
      std::fill(data.begin(), data.end(), 1.0f);
      const Tag first{Tag::Kind::segment, 2};
      {
        MutexLock lock(hub->mutex);
        hub->withholds = [first](Tag tag) { return tag == first; };
      }
      group.barrier().wait();
      float small = 1;
      const std::array works = {group.all_reduce(BufferView(data.first(kCount))),
                                group.all_reduce(BufferView(data.subspan(kCount))),
                                group.all_reduce(BufferView(std::span(&small, 1)))};
      {
        MutexLock lock(hub->mutex);
        for (std::uint64_t segment = 2; segment <= kSegmentDepth; ++segment) {
          while (hub->sent[{group.rank(), 2 * segment}] == 0) hub->changed.wait(hub->mutex);
        }
        EXPECT_EQ((hub->sent[{group.rank(), 2 * (kSegmentDepth + 1)}]), 0) << "its memory is taken";
      }
      for (const Work& work : works) EXPECT_FALSE(work.done()) << "none is done before the one before it";
      checked.arrive_and_wait();
      {
        MutexLock lock(hub->mutex);
        hub->withholds = {};
        hub->notify();
      }
      if (group.rank() == 1) over.wait();  // a program's thread that computes holds up nobody
      for (const Work& work : works) work.wait();
      if (group.rank() != 1) over.count_down();
      for (const float value : data) ASSERT_EQ(value, 4.0f);
      EXPECT_EQ(small, 4.0f);
    });
  }
}

// A collective carries at most this out of, and into, each host, and something where that is not 0; each rank to its
// counterparts alone, so that all ranks of a host share its cable.
using Bytes = std::vector<std::size_t>;  // by host
struct Traffic {
  const char* name;
  HostSizes hosts;
  std::function<Work(ProcessGroup& group, std::byte* own, std::byte* all)> start;  // on enough memory of the program's
  Bytes most_out;
  Bytes most_in;
};

constexpr std::size_t kEven = 32 * 6 * 500;  // elements that are cut into whole cache lines by rails and hosts
constexpr std::size_t kBytes = kEven * sizeof(float);

void expect_at_most(const Traffic& wanted) {
  SCOPED_TRACE(wanted.name);
  std::vector<std::pair<std::size_t, int>> place;  // by rank: its host, and which one it is there
  for (std::size_t host = 0; host < wanted.hosts.size(); ++host) {
    for (int local = 0; local < wanted.hosts[host]; ++local) place.emplace_back(host, local);
  }
  Bytes out(wanted.hosts.size());
  Bytes in(wanted.hosts.size());
  on_hosts(wanted.hosts, [&](ProcessGroup& group, const Hub& hub) {
    std::vector<std::byte> own(kBytes), all(kBytes * place.size());
    wanted.start(group, own.data(), all.data()).wait();
    group.barrier().wait();
    if (group.rank() != 0) return;
    MutexLock lock(hub->mutex);
    for (const auto& [way, bytes] : hub->carried) {
      const auto& [from, from_local] = place[static_cast<std::size_t>(way.first)];
      const auto& [to, to_local] = place[static_cast<std::size_t>(way.second)];
      EXPECT_EQ(from_local, to_local) << way.first << " to " << way.second;
      out[from] += bytes;
      in[to] += bytes;
    }
  });
  EXPECT_THAT(out, Pointwise(Le(), wanted.most_out));
  EXPECT_THAT(in, Pointwise(Le(), wanted.most_in));
  for (std::size_t host = 0; host < out.size(); ++host) {
    EXPECT_EQ(out[host] > 0, wanted.most_out[host] > 0) << "out of host " << host;
    EXPECT_EQ(in[host] > 0, wanted.most_in[host] > 0) << "into host " << host;
  }
}

TEST(Hierarchy, AHostsCableCarriesWhatOneRankPerHostWould) {
  const auto all_reduce = [](DType dtype, bool is_in_arena) {
    return [=](ProcessGroup& group, std::byte* own, std::byte*) {
      const Arena arena = group.allocate(kEven * size_of(dtype));
      const Work work = group.all_reduce(BufferView(is_in_arena ? arena.data : own, kEven, dtype));
      work.wait();
      return work;
    };
  };
  const auto broadcast_from = [](int root) {
    return [root](ProcessGroup& group, std::byte* own, std::byte*) {
      return group.broadcast(BufferView(own, kEven, DType::f32), root);
    };
  };
  const auto all_gather = [](ProcessGroup& group, std::byte* own, std::byte* all) {
    return group.all_gather(BufferView(own, kEven, DType::f32), BufferView(all, kEven * group.size(), DType::f32));
  };
  const auto reduce_scatter = [](DType dtype) {
    return [dtype](ProcessGroup& group, std::byte* own, std::byte* all) {
      return group.reduce_scatter(BufferView(all, kEven * group.size(), dtype), BufferView(own, kEven, dtype));
    };
  };
  // Of float32 2(H-1)/H of the bytes; of 16 bits half of the float32 sums, and half of the results.
  const Bytes f32 = {4 * kEven, 4 * kEven}, bf16 = {3 * kEven, 3 * kEven};
  const Bytes rows = {3 * kBytes, 3 * kBytes};
  const Bytes of_root = {2 * kBytes, 6 * kBytes, 4 * kBytes}, of_others = {5 * kBytes, 3 * kBytes, 4 * kBytes};
  const std::vector<Traffic> cases = {
      {"all_reduce of float32", {3, 3}, all_reduce(DType::f32, true), f32, f32},
      {"of the program's own memory", {3, 3}, all_reduce(DType::f32, false), f32, f32},
      {"of 16 bits", {3, 3}, all_reduce(DType::bf16, true), bf16, bf16},
      {"of 16 bits in the program's own", {3, 3}, all_reduce(DType::bf16, false), bf16, bf16},
      {"broadcast", {3, 3}, broadcast_from(1), {kBytes, 0}, {0, kBytes}},
      // Root sends a half to each other host, which hands it on to the other one.
      {"of three hosts", {2, 3, 2}, broadcast_from(4), {kBytes / 2, kBytes, kBytes / 2}, {kBytes, 0, kBytes}},
      {"all_gather: a row into each other host", {3, 3}, all_gather, rows, rows},
      {"of three hosts", {1, 3, 2}, all_gather, of_root, of_others},
      {"reduce_scatter: a sum out of each other host", {3, 3}, reduce_scatter(DType::f32), rows, rows},
      {"of three hosts", {1, 3, 2}, reduce_scatter(DType::f32), of_others, of_root},
      {"of 16 bits, as float32", {3, 3}, reduce_scatter(DType::bf16), rows, rows}};
  for (const Traffic& one : cases) expect_at_most(one);
}

TEST(Hierarchy, NoRoomOnAHostIsEveryRanksErrorAndTheGroupGoesOn) {
  on_hosts({2, 1}, [&](ProcessGroup& group, const Hub&) {
    expect_failure<BackendUnavailable>([&] { group.allocate(std::size_t{1} << 46); }, {.kind = Cause::Kind::failed});
    group.barrier().wait();
    EXPECT_EQ(floats_of(group.allocate(kCount * sizeof(float))).size(), kCount);
  });
}

TEST(Hierarchy, WhereNoMemoryCanBeSharedAllGoesOverTheWire) {
  const lockstep::testing::LimitedTo little(RLIMIT_FSIZE, 4096);
  on_hosts({2, 2}, [&](ProcessGroup& group, const Hub& hub) {
    const Arena arena = group.allocate(kCount * sizeof(float));
    const std::span<float> data = floats_of(arena);
    std::fill(data.begin(), data.end(), 2.0f);
    group.all_reduce(BufferView(data)).wait();
    for (const float value : data) ASSERT_EQ(value, 8.0f);
    MutexLock lock(hub->mutex);
    EXPECT_GT((hub->carried[{0, 1}]), 0u) << "to its neighbour too";
  });
}

}  // namespace
}  // namespace lockstep::wire::hierarchy_test
