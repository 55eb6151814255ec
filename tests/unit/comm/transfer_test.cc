// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/transfer.h"

#include <gtest/gtest.h>

#include <numeric>

namespace lockstep::comm::transfer_test {
namespace {

CollectiveArgs args_of(OpKind kind, int rank, int size, std::int64_t count, DType dtype = DType::f32) {
  CollectiveArgs args;
  args.record.kind = kind;
  args.record.count = count;
  args.record.dtype = args.reduction.dtype = dtype;
  args.rank = rank;
  args.size = size;
  return args;
}

TEST(Transfer, SharesCoverAChunkOnceInWholeCacheLines) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::u8}) {
    for (const int size : {1, 2, 3, 8, 64}) {
      for (const std::size_t length :
           {std::size_t{0}, std::size_t{1}, std::size_t{15}, std::size_t{1000}, std::size_t{65537}}) {
        const CollectiveArgs args = args_of(OpKind::all_reduce, 0, size, 1 << 20, dtype);
        const Chunk chunk{640, length};
        std::size_t next = chunk.offset;
        for (int r = 0; r < size; ++r) {
          const Chunk range = range_of(args, chunk, r);
          EXPECT_EQ(range.offset, next);
          EXPECT_EQ((range.offset - chunk.offset) * args.element_bytes() % 64, 0u);
          next = range.offset + range.length;
        }
        EXPECT_EQ(next, chunk.offset + length);
      }
    }
  }
}

TEST(Transfer, OnlyTheRootGivesInBroadcastAndScatter) {
  for (const OpKind kind : {OpKind::broadcast, OpKind::scatter}) {
    OpRecord record;
    record.kind = kind;
    record.root = 2;
    EXPECT_TRUE(is_source(record, 2));
    EXPECT_FALSE(is_source(record, 1));
  }
  OpRecord gather;
  gather.kind = OpKind::gather;
  EXPECT_TRUE(is_source(gather, 1));
}

// Staging chunk by chunk and pulling from there gives what pulling all at once gives.
TEST(Transfer, ChunksAddUpToTheWhole) {
  constexpr int kRanks = 3;
  constexpr std::int64_t kCount = 100;
  std::vector<std::vector<float>> inputs(kRanks, std::vector<float>(kRanks * kCount));
  for (int r = 0; r < kRanks; ++r)
    std::iota(inputs[static_cast<std::size_t>(r)].begin(), inputs[static_cast<std::size_t>(r)].end(),
              1000.0f * static_cast<float>(r));
  for (const OpKind kind : {OpKind::all_to_all, OpKind::reduce_scatter, OpKind::all_gather}) {
    std::vector<float> whole(kRanks * kCount);
    std::vector<float> chunked(kRanks * kCount);
    Scratch scratch;
    CollectiveArgs args = args_of(kind, 1, kRanks, kCount);
    std::vector<const std::byte*> bases;
    for (auto& input : inputs) bases.push_back(reinterpret_cast<const std::byte*>(input.data()));
    args.output = BufferView(std::span(whole));
    pull(args, {0, kCount}, {bases, kCount * sizeof(float)}, scratch);

    args.output = BufferView(std::span(chunked));
    constexpr std::size_t kStride = 64 * sizeof(float);
    for (std::size_t begin = 0; begin < kCount; begin += 40) {
      const Chunk chunk{begin, std::min<std::size_t>(40, kCount - begin)};
      std::vector<std::vector<std::byte>> windows(kRanks, std::vector<std::byte>(kRanks * kStride));
      std::vector<const std::byte*> window_bases;
      for (int r = 0; r < kRanks; ++r) {
        CollectiveArgs giver = args_of(kind, r, kRanks, kCount);
        giver.input = BufferView(std::span(inputs[static_cast<std::size_t>(r)]));
        stage(giver, chunk, windows[static_cast<std::size_t>(r)].data(), kStride);
        window_bases.push_back(windows[static_cast<std::size_t>(r)].data());
      }
      pull(args, chunk, {window_bases, kStride}, scratch);
    }
    EXPECT_EQ(whole, chunked);
    EXPECT_NE(whole, std::vector<float>(kRanks * kCount));
  }
}

}  // namespace
}  // namespace lockstep::comm::transfer_test
