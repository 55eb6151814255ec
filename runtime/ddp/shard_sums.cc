// SPDX-License-Identifier: Apache-2.0
#include "runtime/ddp/shard_sums.h"

#include <array>
#include <cstring>
#include <new>

#include "runtime/comm/reduction.h"

namespace lockstep {
namespace {

// `to` becomes left + right; it is one of the two, or apart from them.
void add(const std::byte* left, const std::byte* right, std::byte* to, std::size_t count, DType dtype) {
  const std::array sources{left, right};
  comm::reduce({.dtype = dtype}, sources, to, count);
}

}  // namespace

void ShardSums::Deleter::operator()(std::byte* memory) const {
  ::operator delete[](memory, std::align_val_t{kGradientAlignment});
}

ShardSums::ShardSums(int shards, int rank, int world)
    : shards_(shards),
      first_(data::shards_of(shards, rank, world).begin),
      merges_(merges_of(shards, data::shards_of(shards, rank, world))) {}

void ShardSums::keep(const BucketPlan& plan, std::span<const ParameterSpec> specs) {
  const int merges = merges_[done_];
  if (merges == 0 && kept_ == memory_.size()) {
    memory_.emplace_back(new (std::align_val_t{kGradientAlignment}) std::byte[plan.arena_bytes]);
  }
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const std::size_t offset = plan.slots[i].offset;
    const auto count = static_cast<std::size_t>(specs[i].count());
    if (merges == 0) {
      std::memcpy(memory_[kept_].get() + offset, arena_ + offset, specs[i].bytes());
      continue;
    }
    const std::byte* newest = arena_ + offset;
    for (int merge = 1; merge <= merges; ++merge) {
      std::byte* const left = memory_[kept_ - static_cast<std::size_t>(merge)].get() + offset;
      add(left, newest, left, count, specs[i].dtype);
      newest = left;
    }
  }
  kept_ = kept_ + 1 - static_cast<std::size_t>(merges);
  ++done_;
}

void ShardSums::accumulate(std::byte* slice, std::size_t count, DType dtype) const {
  for (int merge = 1; merge <= merges_[done_]; ++merge) {
    add(memory_[kept_ - static_cast<std::size_t>(merge)].get() + (slice - arena_), slice, slice, count, dtype);
  }
}

void ShardSums::restart() {
  done_ = 0;
  kept_ = 0;
}

std::vector<const std::byte*> ShardSums::nodes(const std::byte* slice) const {
  std::vector<const std::byte*> nodes;
  for (std::size_t i = 0; i + static_cast<std::size_t>(merges_[done_]) < kept_; ++i) {
    nodes.push_back(memory_[i].get() + (slice - arena_));
  }
  nodes.push_back(slice);
  return nodes;
}

}  // namespace lockstep
