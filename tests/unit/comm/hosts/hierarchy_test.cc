// SPDX-License-Identifier: Apache-2.0
// What a group over several hosts computes, and what crosses their cables for it.
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
#include "runtime/comm/shm/process_group_shm.h"
#include "runtime/comm/wire/op_header_table.h"
#include "tests/support/error_of.h"
#include "tests/unit/comm/hosts/fake_hosts.h"

namespace lockstep::wire::hierarchy_test {
namespace {

using lockstep::testing::expect_failure;
using ::testing::Le;
using ::testing::Pointwise;

// As one host would reduce it.
std::vector<float> reduced(int ranks, std::size_t count, const comm::Reduction& reduction) {
  std::vector<std::vector<float>> inputs;
  std::vector<const std::byte*> sources;
  for (int r = 0; r < ranks; ++r) inputs.push_back(noise_of(r, count));
  for (const auto& input : inputs) sources.push_back(reinterpret_cast<const std::byte*>(input.data()));
  std::vector<float> result(count);
  comm::reduce(reduction, sources, reinterpret_cast<std::byte*>(result.data()), count);
  return result;
}

TEST(Hierarchy, SumsOfEqualPowersOfTwoHaveTheBitsOfOneHost) {
  for (const std::vector<int>& hosts : {std::vector<int>{2, 2}, {4, 4}, {2, 2, 2}, {1, 1}}) {
    const int ranks = hosts[0] * static_cast<int>(hosts.size());
    const std::vector<float> wanted = reduced(ranks, kCount, {.dtype = DType::f32});
    const std::vector<float> weighted =
        reduced(ranks, kCount, {.dtype = DType::f32, .divisor = ranks * (ranks + 1) / 2});
    on_hosts(hosts, [&](ProcessGroup& group, const Hub&) {
      const Arena arena = group.allocate(kCount * sizeof(float));
      const std::span<float> data = floats_of(arena);
      const std::vector<float> own = noise_of(group.rank(), kCount);
      std::copy(own.begin(), own.end(), data.begin());
      group.all_reduce(BufferView(data)).wait();
      EXPECT_EQ(std::memcmp(data.data(), wanted.data(), data.size_bytes()), 0)
          << hosts.size() << " hosts of " << hosts[0];
      std::copy(own.begin(), own.end(), data.begin());
      group.all_reduce(BufferView(data), {.weight = group.rank() + 1}).wait();
      EXPECT_EQ(std::memcmp(data.data(), weighted.data(), data.size_bytes()), 0);
    });
  }
}

// Each rank gives another place of its memory, and hosts are of different sizes.
TEST(Hierarchy, SumsAreTheSameOnAllRanksOfAnyHosts) {
  for (const std::vector<int>& hosts : {std::vector<int>{1, 3, 2}, {3, 1}, {2, 5}}) {
    int ranks = 0;
    for (const int of_host : hosts) ranks += of_host;
    const std::vector<float> wanted = reduced(ranks, kCount, {.dtype = DType::f32});
    std::vector<std::vector<float>> got(static_cast<std::size_t>(ranks));
    on_hosts(hosts, [&](ProcessGroup& group, const Hub&) {
      const Arena arena = group.allocate(2 * kCount * sizeof(float));
      const std::span<float> data = floats_of(arena).subspan(static_cast<std::size_t>(group.rank()) * 37, kCount);
      const std::vector<float> own = noise_of(group.rank(), kCount);
      std::copy(own.begin(), own.end(), data.begin());
      group.all_reduce(BufferView(data)).wait();
      got[static_cast<std::size_t>(group.rank())].assign(data.begin(), data.end());
      for (const float rest : floats_of(arena).last(kCount / 2)) ASSERT_EQ(rest, 0) << "nothing beside it is touched";
    });
    for (const auto& of_rank : got) EXPECT_EQ(std::memcmp(of_rank.data(), got[0].data(), kCount * sizeof(float)), 0);
    for (std::size_t i = 0; i < kCount; ++i) ASSERT_NEAR(got[0][i], wanted[i], 1e-4f * std::abs(wanted[i]) + 1e-3f);
  }
}

using Bytes = std::vector<std::size_t>;  // by host

// `collective` carries at most this out of, and into, each host, and something where that is not 0; each rank to its
// counterparts alone, so that all ranks of a host share its cable.
void expect_at_most(const std::vector<int>& hosts, const Body& collective, const Bytes& most_out,
                    const Bytes& most_in) {
  std::vector<std::pair<std::size_t, int>> place;  // by rank: its host, and which one it is there
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    for (int local = 0; local < hosts[host]; ++local) place.emplace_back(host, local);
  }
  Bytes out(hosts.size());
  Bytes in(hosts.size());
  on_hosts(hosts, [&](ProcessGroup& group, const Hub& hub) {
    collective(group, hub);
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
  EXPECT_THAT(out, Pointwise(Le(), most_out));
  EXPECT_THAT(in, Pointwise(Le(), most_in));
  for (std::size_t host = 0; host < hosts.size(); ++host) {
    EXPECT_EQ(out[host] > 0, most_out[host] > 0) << "out of host " << host;
    EXPECT_EQ(in[host] > 0, most_in[host] > 0) << "into host " << host;
  }
}

constexpr std::size_t kEven = 32 * 6 * 500;  // elements that are cut into whole cache lines by rails and hosts

TEST(Hierarchy, AHostsCableCarriesWhatOneRankPerHostWould) {
  const auto reduce_all = [](DType dtype, bool is_in_arena) {
    return [=](ProcessGroup& group, const Hub&) {
      const Arena arena = group.allocate(kEven * size_of(dtype));
      std::vector<std::byte> own(kEven * size_of(dtype));
      group.all_reduce(BufferView(is_in_arena ? arena.data : own.data(), kEven, dtype)).wait();
    };
  };
  for (const bool is_in_arena : {true, false}) {
    SCOPED_TRACE(is_in_arena ? "arena" : "the program's own memory");
    // Of float32 2(H-1)/H of the bytes; of 16 bits half of the float32 sums, and half of the results.
    expect_at_most({3, 3}, reduce_all(DType::f32, is_in_arena), {4 * kEven, 4 * kEven}, {4 * kEven, 4 * kEven});
    expect_at_most({3, 3}, reduce_all(DType::bf16, is_in_arena), {3 * kEven, 3 * kEven}, {3 * kEven, 3 * kEven});
  }
}

TEST(Hierarchy, ABroadcastCrossesEachCableOnce) {
  const auto broadcast_from = [](int root) {
    return [root](ProcessGroup& group, const Hub&) {
      std::vector<float> data(kEven);
      group.broadcast(BufferView(std::span(data)), root).wait();
    };
  };
  constexpr std::size_t kBytes = kEven * sizeof(float);
  expect_at_most({3, 3}, broadcast_from(1), {kBytes, 0}, {0, kBytes});
  // Root sends a half to each other host, which hands it on to the other one.
  expect_at_most({2, 3, 2}, broadcast_from(4), {kBytes / 2, kBytes, kBytes / 2}, {kBytes, 0, kBytes});
}

TEST(Hierarchy, ARowCrossesTheCableOfEachOtherHostOnce) {
  const Body gather_all = [](ProcessGroup& group, const Hub&) {
    std::vector<float> row(kEven);
    std::vector<float> all(kEven * static_cast<std::size_t>(group.size()));
    group.all_gather(BufferView(std::span(row)), BufferView(std::span(all))).wait();
  };
  constexpr std::size_t kBytes = kEven * sizeof(float);
  expect_at_most({3, 3}, gather_all, {3 * kBytes, 3 * kBytes}, {3 * kBytes, 3 * kBytes});
  expect_at_most({1, 3, 2}, gather_all, {2 * kBytes, 6 * kBytes, 4 * kBytes}, {5 * kBytes, 3 * kBytes, 4 * kBytes});
}

TEST(Hierarchy, OfARowOfSumsOneOfEachOtherHostCrosses) {
  const auto reduce_scatter = [](DType dtype) {
    return [dtype](ProcessGroup& group, const Hub&) {
      const std::size_t row = kEven * size_of(dtype);
      std::vector<std::byte> rows(row * static_cast<std::size_t>(group.size()));
      std::vector<std::byte> own(row);
      group.reduce_scatter(BufferView(rows.data(), kEven * group.size(), dtype), BufferView(own.data(), kEven, dtype))
          .wait();
    };
  };
  // Of 16 bits as float32.
  for (const DType dtype : {DType::f32, DType::bf16}) {
    constexpr std::size_t kBytes = kEven * sizeof(float);
    expect_at_most({3, 3}, reduce_scatter(dtype), {3 * kBytes, 3 * kBytes}, {3 * kBytes, 3 * kBytes});
    expect_at_most({1, 3, 2}, reduce_scatter(dtype), {5 * kBytes, 3 * kBytes, 4 * kBytes},
                   {2 * kBytes, 6 * kBytes, 4 * kBytes});
  }
}

// An announcement goes to one rank of each other host, which tells its neighbours.
TEST(Hierarchy, ACollectiveIsAnnouncedOnceToEachOtherHost) {
  constexpr int kBarriers = 10;
  for (const std::vector<int>& hosts : {std::vector<int>{3, 3}, {2, 3, 1}}) {
    on_hosts(hosts, [&](ProcessGroup& group, const Hub& hub) {
      for (int i = 0; i < kBarriers; ++i) group.barrier().wait();
      MutexLock lock(hub->mutex);
      int told = 0;
      for (const auto& [way, frames] : hub->announced) {
        if (way.first != group.rank()) continue;
        EXPECT_EQ(frames, kBarriers) << way.first << " to " << way.second;
        ++told;
      }
      EXPECT_EQ(told, static_cast<int>(hosts.size()) - 1);
    });
  }
}

// More than the table has places for, small and large ones, by ranks of which none waits for another.
TEST(Hierarchy, ManyCollectivesAreUnderWayAtOnce) {
  constexpr int kWorks = 3 * static_cast<int>(OpHeaderTable::kSlots) + 5;
  for (const std::vector<int>& hosts : {std::vector<int>{2, 2}, {1, 3, 2}}) {
    on_hosts(hosts, [&](ProcessGroup& group, const Hub&) {
      const Arena arena = group.allocate(kWorks * 512 * sizeof(float));
      const std::span<float> data = floats_of(arena);
      std::fill(data.begin(), data.end(), static_cast<float>(group.rank() + 1));
      std::vector<Work> works;
      for (int i = 0; i < kWorks; ++i) {
        const std::size_t count = i % 3 == 0 ? 512 : static_cast<std::size_t>(1 + i % 7);
        works.push_back(group.all_reduce(BufferView(data.subspan(static_cast<std::size_t>(i) * 512, count))));
      }
      for (const Work& work : works) work.wait();
      const auto wanted = static_cast<float>(group.size() * (group.size() + 1) / 2);
      for (int i = 0; i < kWorks; ++i) EXPECT_EQ(data[static_cast<std::size_t>(i) * 512], wanted) << i;
    });
  }
}

// Of one trip, of two, of several segments; every rank is root once, of several segments two are.
TEST(Hierarchy, WhatIsHandedRoundComesToEveryRank) {
  for (const std::vector<int>& hosts : {std::vector<int>{2, 2}, {2, 2, 2}, {1, 3, 2}}) {
    const int ranks = static_cast<int>(roster_of(hosts).size());
    for (const std::size_t count : {std::size_t{300}, kCount, std::size_t{270007}}) {
      SCOPED_TRACE(text_of(hosts) + ", " + std::to_string(count));
      std::vector<std::vector<float>> sums(static_cast<std::size_t>(ranks));
      on_hosts(hosts, [&](ProcessGroup& group, const Hub&) {
        std::vector<float> all(count * static_cast<std::size_t>(ranks));
        for (int root = 0; root < ranks; ++root) {
          const std::vector<float> of_root = noise_of(root, count);
          std::copy(of_root.begin(), of_root.end(), all.begin() + root * static_cast<std::ptrdiff_t>(count));
          if (count > kCount && root % 3 != 0) continue;
          std::vector<float> data = group.rank() == root ? of_root : std::vector<float>(count);
          group.broadcast(BufferView(std::span(data)), root).wait();
          EXPECT_EQ(data, of_root) << "rank " << group.rank() << " from " << root;
          if (count == kCount) {
            std::vector<float> own = noise_of(group.rank(), count);
            group.reduce(BufferView(std::span(own)), root).wait();
            if (group.rank() == root) {
              sums[static_cast<std::size_t>(root)] = own;
            } else {
              EXPECT_EQ(own, noise_of(group.rank(), count)) << "an input is kept";
            }
          }
        }
        std::vector<float> row = noise_of(group.rank(), count);
        std::vector<float> rows(all.size());
        group.all_gather(BufferView(std::span(row)), BufferView(std::span(rows))).wait();
        EXPECT_EQ(rows, all);
        std::fill(rows.begin(), rows.end(), 0.0f);
        const auto in_place = std::span(rows).subspan(count * static_cast<std::size_t>(group.rank()), count);
        std::copy(row.begin(), row.end(), in_place.begin());
        group.all_gather(BufferView(in_place), BufferView(std::span(rows))).wait();
        EXPECT_EQ(rows, all) << "in place";
        std::copy(row.begin(), row.end(), rows.begin());
        const auto sum = std::span(rows).first(count);
        group.all_reduce(BufferView(sum)).wait();
        if (count == kCount) {
          EXPECT_TRUE(std::equal(sum.begin(), sum.end(), sums[static_cast<std::size_t>(group.rank())].begin()))
              << "a sum that one rank gets is that of all";
        }
      });
    }
  }
}

// One after the other in each rank's memory, in which slots of windows are taken again and again.
TEST(Hierarchy, CollectivesOfAllKindsAreUnderWayAtOnce) {
  constexpr int kRounds = 12;
  on_hosts({2, 3, 2}, [&](ProcessGroup& group, const Hub&) {
    const auto size = static_cast<std::size_t>(group.size());
    const Arena arena = group.allocate(kRounds * kCount * sizeof(float));
    const std::span<float> sums = floats_of(arena);
    std::vector<float> roots(kRounds * kCount);
    std::vector<float> row(kCount, static_cast<float>(group.rank()));
    std::vector<float> rows(kRounds * kCount * size);
    std::vector<float> reduced(kRounds * kCount, 1.0f);
    const std::vector<float> ones(kCount * size, 1.0f);
    std::vector<float> scattered(kRounds * kCount);
    std::fill(sums.begin(), sums.end(), 1.0f);
    std::vector<Work> works;
    for (int i = 0; i < kRounds; ++i) {
      const std::size_t at = static_cast<std::size_t>(i) * kCount;
      const int root = i % group.size();
      const std::span<float> of_root = std::span(roots).subspan(at, kCount);
      if (group.rank() == root) std::fill(of_root.begin(), of_root.end(), static_cast<float>(i));
      works.push_back(group.all_reduce(BufferView(sums.subspan(at, kCount))));
      works.push_back(group.broadcast(BufferView(of_root), root));
      works.push_back(
          group.all_gather(BufferView(std::span(row)), BufferView(std::span(rows).subspan(at * size, kCount * size))));
      works.push_back(group.reduce(BufferView(std::span(reduced).subspan(at, kCount)), root));
      works.push_back(group.reduce_scatter(BufferView(const_cast<float*>(ones.data()), ones.size(), DType::f32),
                                           BufferView(std::span(scattered).subspan(at, kCount))));
      works.push_back(group.barrier());
    }
    for (auto work = works.rbegin(); work != works.rend(); ++work) work->wait();
    for (std::size_t i = 0; i < kRounds * kCount; ++i) {
      const std::size_t round = i / kCount;
      ASSERT_EQ(sums[i], static_cast<float>(size));
      ASSERT_EQ(roots[i], static_cast<float>(round));
      const bool is_root = group.rank() == static_cast<int>(round % size);
      ASSERT_EQ(scattered[i], static_cast<float>(size));
      ASSERT_EQ(reduced[i], is_root ? static_cast<float>(size) : 1.0f);
      for (std::size_t r = 0; r < size; ++r) {
        ASSERT_EQ(rows[(round * size + r) * kCount + i % kCount], static_cast<float>(r));
      }
    }
  });
}

// The small ones take one trip, the large ones two; of three hosts and of four the small ones end at another size.
TEST(Hierarchy, SharesOfEverySizeHaveTheSameBits) {
  for (const std::vector<int>& hosts : {std::vector<int>{2, 2}, {2, 2, 2}, {2, 2, 2, 2}}) {
    const int ranks = 2 * static_cast<int>(hosts.size());
    for (const std::size_t count : {std::size_t{257}, std::size_t{4097}, std::size_t{9000}, std::size_t{700001}}) {
      const std::vector<float> wanted = reduced(ranks, count, {.dtype = DType::f32});
      on_hosts(hosts, [&](ProcessGroup& group, const Hub&) {
        const Arena arena = group.allocate(count * sizeof(float));
        const std::span<float> data = floats_of(arena);
        const std::vector<float> own = noise_of(group.rank(), count);
        std::copy(own.begin(), own.end(), data.begin());
        group.all_reduce(BufferView(data)).wait();
        EXPECT_EQ(std::memcmp(data.data(), wanted.data(), data.size_bytes()), 0) << hosts.size() << " hosts, " << count;
      });
    }
  }
}

// All but the first segment of all-reduces that follow each other are on their way while that one's data does not come.
TEST(Hierarchy, SegmentsAndAllReducesAreUnderWayAtOnce) {
  constexpr std::size_t kFloats = (std::size_t{9} << 20) / sizeof(float);  // several segments
  for (const bool is_in_arena : {true, false}) {
    std::latch checked(4);
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
      for (const Work& work : works) work.wait();
      for (const float value : data) ASSERT_EQ(value, 4.0f);
      EXPECT_EQ(small, 4.0f);
    });
  }
}

// A program's thread that computes, and does not ask what has become of its all-reduces.
TEST(Hierarchy, ARankThatComputesHoldsUpNobody) {
  for (const bool is_in_arena : {true, false}) {
    std::latch over(3);
    on_hosts({2, 2}, [&](ProcessGroup& group, const Hub&) {
      const Arena arena = group.allocate(kCount * sizeof(float));
      std::vector<float> own(is_in_arena ? 0 : kCount);
      const std::span<float> data = is_in_arena ? floats_of(arena) : std::span(own);
      std::fill(data.begin(), data.end(), 1.0f);
      const Work work = group.all_reduce(BufferView(data));
      if (group.rank() == 1) {
        over.wait();
      } else {
        work.wait();
        over.count_down();
      }
      work.wait();
      for (const float value : data) ASSERT_EQ(value, 4.0f);
    });
  }
}

// What is rounded, or divided, once: its sums cross hosts as they are accumulated.
template <typename T>
std::vector<T> values_of(int rank, std::size_t count) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    if constexpr (std::is_same_v<T, bfloat16>) {
      values[i] = to_bfloat16(noise(rank, i));
    } else if constexpr (std::is_same_v<T, float16>) {
      values[i] = to_float16(noise(rank, i));
    } else {
      values[i] = static_cast<T>((i * 2654435761u + static_cast<std::size_t>(rank) * 40503) >> 1);
    }
  }
  return values;
}

// By rank, of a group; those of an arena and of memory of the program's own are the same.
template <typename T>
class Results {
 public:
  Results(int ranks, std::size_t count, ReductionOptions options)
      : count_(count), options_(options), of_ranks_(static_cast<std::size_t>(ranks)) {}

  void reduce_on(ProcessGroup& group) {
    ReductionOptions options = options_;
    if (options.weight) options.weight = *options.weight + group.rank();
    const std::vector<T> own = values_of<T>(group.rank(), count_);
    const Arena arena = group.allocate(count_ * sizeof(T));
    const std::span<T> in_arena(reinterpret_cast<T*>(arena.data), count_);
    std::copy(own.begin(), own.end(), in_arena.begin());
    group.all_reduce(BufferView(in_arena), options).wait();
    std::vector<T>& mine = of_ranks_[static_cast<std::size_t>(group.rank())];
    mine = own;
    group.all_reduce(BufferView(std::span(mine)), options).wait();
    EXPECT_EQ(std::memcmp(mine.data(), in_arena.data(), count_ * sizeof(T)), 0);
  }
  void expect_all_are(const std::vector<T>& wanted, const std::string& where) const {
    for (const std::vector<T>& of_rank : of_ranks_) {
      ASSERT_EQ(std::memcmp(of_rank.data(), wanted.data(), count_ * sizeof(T)), 0)
          << where << ", " << name_of(dtype_of<T>()) << " x " << count_;
    }
  }
  const std::vector<T>& first() const { return of_ranks_[0]; }

 private:
  const std::size_t count_;
  const ReductionOptions options_;
  std::vector<std::vector<T>> of_ranks_;
};

template <typename T>
std::vector<T> on_one_host(int ranks, std::size_t count, ReductionOptions options) {
  Results<T> results(ranks, count, options);
  on_ranks(roster_of({ranks}), [&](const GroupContext& context, const Deadline& deadline) {
    results.reduce_on(*shm::backend().create(context, deadline));
  });
  results.expect_all_are(results.first(), "shm");
  return results.first();
}

template <typename T>
void expect_bits_of_shm(const std::vector<int>& hosts, std::size_t count, ReductionOptions options) {
  const int ranks = static_cast<int>(roster_of(hosts).size());
  Results<T> results(ranks, count, options);
  on_hosts(hosts, [&](ProcessGroup& group, const Hub&) { results.reduce_on(group); });
  results.expect_all_are(on_one_host<T>(ranks, count, options), text_of(hosts));
}

template <typename T>
void expect_an_all_reduce_in_parts(const std::vector<int>& hosts, ReduceOp op) {
  SCOPED_TRACE(text_of(hosts) + ", " + std::string(name_of(dtype_of<T>())));
  on_hosts(hosts, [&](ProcessGroup& group, const Hub&) {
    constexpr std::size_t kRow = 10007;
    const auto size = static_cast<std::size_t>(group.size());
    const auto own = [&](std::vector<T>& all) {
      return std::span(all).subspan(static_cast<std::size_t>(group.rank()) * kRow, kRow);
    };
    const std::vector<T> input = values_of<T>(group.rank(), kRow * size);
    std::vector<T> scattered = input;
    std::vector<T> apart(kRow);
    group.reduce_scatter(BufferView(std::span(scattered)), BufferView(std::span(apart)), {.op = op}).wait();
    EXPECT_EQ(std::memcmp(scattered.data(), input.data(), input.size() * sizeof(T)), 0) << "an input is kept";
    group.reduce_scatter(BufferView(std::span(scattered)), BufferView(own(scattered)), {.op = op}).wait();
    std::vector<T> reduced = input;
    group.all_reduce(BufferView(std::span(reduced)), {.op = op}).wait();
    EXPECT_EQ(std::memcmp(apart.data(), own(reduced).data(), kRow * sizeof(T)), 0);
    EXPECT_EQ(std::memcmp(own(scattered).data(), own(reduced).data(), kRow * sizeof(T)), 0) << "in place";
  });
}

TEST(Hierarchy, AReduceScatterGivesTheBitsOfAnAllReduce) {
  for (const std::vector<int>& hosts : {std::vector<int>{2, 2}, {1, 3, 2}}) {
    expect_an_all_reduce_in_parts<float>(hosts, ReduceOp::sum);
    expect_an_all_reduce_in_parts<bfloat16>(hosts, ReduceOp::avg);
    expect_an_all_reduce_in_parts<float16>(hosts, ReduceOp::max);
    expect_an_all_reduce_in_parts<std::int32_t>(hosts, ReduceOp::sum);
  }
}

// A few elements travel with the announcement, more in segments: the order of addition is the same.
template <typename T>
void expect_the_same_bits_of_all_sizes(const std::vector<int>& hosts, ReductionOptions options) {
  SCOPED_TRACE(text_of(hosts) + ", " + std::string(name_of(dtype_of<T>())));
  on_hosts(hosts, [&](ProcessGroup& group, const Hub&) {
    const auto size = static_cast<std::size_t>(group.size());
    const std::vector<T> input = values_of<T>(group.rank(), 513 * size);
    std::vector<T> whole = input;
    group.all_reduce(BufferView(std::span(whole)), options).wait();
    for (const std::size_t count : {1, 7, 16, 60, 255, 256, 257, 300, 511, 513}) {
      std::vector<T> part(input.begin(), input.begin() + static_cast<std::ptrdiff_t>(count));
      group.all_reduce(BufferView(std::span(part)), options).wait();
      EXPECT_EQ(std::memcmp(part.data(), whole.data(), count * sizeof(T)), 0) << count;
      std::copy_n(input.begin(), count, part.begin());
      if (!options.weight) {
        group.reduce(BufferView(std::span(part)), 1, options.op).wait();
        if (group.rank() == 1) {
          EXPECT_EQ(std::memcmp(part.data(), whole.data(), count * sizeof(T)), 0) << "reduce " << count;
        }
      }
      std::vector<T> row(count);
      const std::size_t begin = static_cast<std::size_t>(group.rank()) * count;
      std::vector<T> rows(input.begin(), input.begin() + static_cast<std::ptrdiff_t>(count * size));
      group.reduce_scatter(BufferView(std::span(rows)), BufferView(std::span(row)), options).wait();
      EXPECT_EQ(std::memcmp(row.data(), whole.data() + begin, count * sizeof(T)), 0) << "reduce_scatter " << count;
    }
  });
}

TEST(Hierarchy, SumsOfAnySizeAddUpInOneOrder) {
  for (const std::vector<int>& hosts : {std::vector<int>{1, 2}, {1, 3}, {3, 2}, {3, 3}, {2, 2}, {1, 1, 1}}) {
    expect_the_same_bits_of_all_sizes<float>(hosts, {});
    expect_the_same_bits_of_all_sizes<double>(hosts, {.weight = 3});
    expect_the_same_bits_of_all_sizes<bfloat16>(hosts, {.op = ReduceOp::avg});
    expect_the_same_bits_of_all_sizes<float16>(hosts, {});
  }
}

const ReductionOptions kWeighted{.weight = 3};
const ReductionOptions kMean{.op = ReduceOp::avg};

TEST(Hierarchy, WhatIsRoundedOrDividedOnceHasTheBitsOfOneHostForEqualPowersOfTwo) {
  for (const std::vector<int>& hosts : {std::vector<int>{1, 1}, {2, 2}, {4, 4}, {1, 1, 1}, {2, 2, 2}, {4, 4, 4}}) {
    for (const std::size_t count : {std::size_t{1031}, kCount}) {
      expect_bits_of_shm<bfloat16>(hosts, count, {});
      expect_bits_of_shm<float16>(hosts, count, kWeighted);
    }
    expect_bits_of_shm<bfloat16>(hosts, kCount, kWeighted);
    expect_bits_of_shm<float16>(hosts, kCount, {.op = ReduceOp::max});
    expect_bits_of_shm<std::int32_t>(hosts, kCount, kMean);
    expect_bits_of_shm<std::int64_t>(hosts, kCount, kMean);
    expect_bits_of_shm<std::uint8_t>(hosts, kCount, kMean);
  }
  // Of several segments.
  expect_bits_of_shm<bfloat16>({2, 2}, 500009, kWeighted);
  expect_bits_of_shm<float16>({2, 2, 2}, 300007, {});
}

// The order of addition is another where hosts are: integers know none, floats stay within a rounding of float32 and
// the one to 16 bits.
TEST(Hierarchy, WhatIsRoundedOnceIsTheSameOnAllRanksOfAnyHostsAndFromRunToRun) {
  for (const std::vector<int>& hosts : {std::vector<int>{1, 3, 2}, {3, 1}, {3, 3}}) {
    const int ranks = static_cast<int>(roster_of(hosts).size());
    Results<bfloat16> before(ranks, kCount, kWeighted);
    on_hosts(hosts, [&](ProcessGroup& group, const Hub&) { before.reduce_on(group); });
    Results<bfloat16> again(ranks, kCount, kWeighted);
    on_hosts(hosts, [&](ProcessGroup& group, const Hub&) { again.reduce_on(group); });
    before.expect_all_are(before.first(), text_of(hosts));
    again.expect_all_are(before.first(), text_of(hosts));
    const std::vector<bfloat16> wanted = on_one_host<bfloat16>(ranks, kCount, kWeighted);
    for (std::size_t i = 0; i < kCount; ++i) {
      const float magnitude = std::pow(10.0f, static_cast<float>(i % 9) - 4);
      ASSERT_NEAR(to_float(before.first()[i]), to_float(wanted[i]),
                  std::abs(to_float(wanted[i])) / 128 + 1e-6f * magnitude);
    }
    expect_bits_of_shm<std::int32_t>(hosts, kCount, kMean);
  }
}

// More than a window holds, and where only one rank's buffer is in no arena.
TEST(Hierarchy, TheProgramsOwnMemoryHasTheBitsOfAnArena) {
  for (const std::vector<int>& hosts : {std::vector<int>{2, 2}, {4, 4}, {1, 3, 2}}) {
    for (const std::size_t count : {std::size_t{300}, kCount, (std::size_t{5} << 20) / sizeof(float) + 3}) {
      on_hosts(hosts, [&](ProcessGroup& group, const Hub&) {
        const Arena arena = group.allocate(count * sizeof(float));
        const std::vector<float> own = noise_of(group.rank(), count);
        const std::span<float> in_arena = floats_of(arena);
        std::copy(own.begin(), own.end(), in_arena.begin());
        group.all_reduce(BufferView(in_arena), {.weight = 3}).wait();
        const std::vector<float> wanted(in_arena.begin(), in_arena.end());
        std::vector<float> mine = own;
        group.all_reduce(BufferView(std::span(mine)), {.weight = 3}).wait();
        EXPECT_EQ(std::memcmp(mine.data(), wanted.data(), count * sizeof(float)), 0) << hosts.size() << ", " << count;
        mine = own;
        std::copy(own.begin(), own.end(), in_arena.begin());
        const std::span<float> mixed = group.rank() == 1 ? std::span(mine) : in_arena;
        group.all_reduce(BufferView(mixed), {.weight = 3}).wait();
        EXPECT_EQ(std::memcmp(mixed.data(), wanted.data(), count * sizeof(float)), 0) << hosts.size() << ", " << count;
      });
    }
  }
}

TEST(Hierarchy, NoRoomOnAHostIsEveryRanksErrorAndTheGroupGoesOn) {
  on_hosts({2, 1}, [&](ProcessGroup& group, const Hub&) {
    expect_failure<BackendUnavailable>([&] { group.allocate(std::size_t{1} << 46); }, {.kind = Cause::Kind::failed});
    const Arena arena = group.allocate(kCount * sizeof(float));
    const std::span<float> data = floats_of(arena);
    std::fill(data.begin(), data.end(), 2.0f);
    group.all_reduce(BufferView(data)).wait();
    for (const float value : data) ASSERT_EQ(value, 6.0f);
  });
}

TEST(Hierarchy, WhereNoMemoryCanBeSharedAllGoesOverTheWire) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit little{.rlim_cur = 4096, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &little), 0);
  on_hosts({2, 2}, [&](ProcessGroup& group, const Hub& hub) {
    const Arena arena = group.allocate(kCount * sizeof(float));
    const std::span<float> data = floats_of(arena);
    std::fill(data.begin(), data.end(), 2.0f);
    group.all_reduce(BufferView(data)).wait();
    for (const float value : data) ASSERT_EQ(value, 8.0f);
    MutexLock lock(hub->mutex);
    EXPECT_GT((hub->carried[{0, 1}]), 0u) << "to its neighbour too";
  });
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
}

}  // namespace
}  // namespace lockstep::wire::hierarchy_test
