// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/transfer.h"

#include <gtest/gtest.h>

namespace lockstep::comm::transfer_test {
namespace {

// What else there is, tests/conformance runs through windows of every size.
TEST(Transfer, SharesCoverAChunkOnceInWholeCacheLines) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::u8}) {
    for (const int size : {1, 2, 3, 8, 64}) {
      for (const std::size_t length :
           {std::size_t{0}, std::size_t{1}, std::size_t{15}, std::size_t{1000}, std::size_t{65537}}) {
        CollectiveArgs args;
        args.record = {.kind = OpKind::all_reduce, .dtype = dtype, .count = 1 << 20};
        args.reduction.dtype = dtype;
        args.size = size;
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

}  // namespace
}  // namespace lockstep::comm::transfer_test
