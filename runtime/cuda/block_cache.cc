#include "runtime/cuda/block_cache.h"

#include <algorithm>
#include <utility>

namespace lockstep::cuda {
namespace {

constexpr std::size_t kMiB = 1024 * 1024;
constexpr std::size_t kStep = 512;  // the device wants 256
constexpr std::size_t kSmall = kMiB;
constexpr std::size_t kSmallSegment = 2 * kMiB;
constexpr std::size_t kMedium = 10 * kMiB;
constexpr std::size_t kMediumSegment = 20 * kMiB;
constexpr std::size_t kLargeStep = 2 * kMiB;

std::size_t round_up(std::size_t bytes, std::size_t step) { return (bytes + step - 1) / step * step; }

// What is left of a large block is worth keeping only if it isn't small.
bool worth_cutting(const Block& block, std::size_t bytes) {
  return block.bytes - bytes >= (block.is_small ? kStep : kSmall + kStep);
}

}  // namespace

std::size_t BlockCache::block_bytes(std::size_t bytes) { return std::max(kStep, round_up(bytes, kStep)); }

std::size_t BlockCache::segment_bytes(std::size_t block_bytes) {
  if (block_bytes <= kSmall) return kSmallSegment;
  if (block_bytes < kMedium) return kMediumSegment;
  return round_up(block_bytes, kLargeStep);
}

void BlockCache::put_free(Block* block) {
  block->free = true;
  free_[{block->stream, block->is_small}].insert(block);
  free_bytes_ += block->bytes;
}

void BlockCache::take_free(Block* block) {
  const auto list = free_.find({block->stream, block->is_small});
  list->second.erase(block);
  if (list->second.empty()) free_.erase(list);
  free_bytes_ -= block->bytes;
  block->free = false;
  unguarded_.erase(std::exchange(block->unguarded, 0));
}

Block* BlockCache::cut(Block* block, std::size_t bytes) {
  if (!worth_cutting(*block, bytes)) return block;
  auto rest = std::make_unique<Block>();
  rest->data = block->data + bytes;
  rest->bytes = block->bytes - bytes;
  rest->stream = block->stream;
  rest->is_small = block->is_small;
  rest->before = block;
  rest->behind = block->behind;
  if (block->behind != nullptr) block->behind->before = rest.get();
  block->behind = rest.get();
  block->bytes = bytes;
  Block* const added = rest.get();
  all_[added] = std::move(rest);
  put_free(added);
  return block;
}

void BlockCache::join(Block* first, Block* second) {
  first->bytes += second->bytes;
  first->behind = second->behind;
  if (second->behind != nullptr) second->behind->before = first;
  all_.erase(second);
}

Block* BlockCache::take(std::size_t bytes, void* stream, const std::function<void(void*)>& unguard) {
  const auto list = free_.find({stream, bytes <= kSmall});
  if (list == free_.end()) return nullptr;
  const auto found = list->second.lower_bound(bytes);
  if (found == list->second.end()) return nullptr;
  Block* const block = *found;
  take_free(block);
  if (void* const event = std::exchange(block->idle_after, nullptr)) unguard(event);
  return cut(block, bytes);
}

Block* BlockCache::take_out(std::size_t bytes, void* stream, const std::function<bool(const Block&)>& may_use) {
  for (auto& [key, list] : free_) {
    if (key.stream == stream || key.is_small != (bytes <= kSmall)) continue;
    for (auto found = list.lower_bound(bytes); found != list.end(); ++found) {
      Block* const block = *found;
      if (!block->is_segment() || block->idle_after == nullptr || !may_use(*block)) continue;
      take_free(block);
      return block;
    }
  }
  return nullptr;
}

Block* BlockCache::hand_over(Block* segment, std::size_t bytes, void* stream,
                             const std::function<void(void*)>& unguard) {
  segment->stream = stream;
  unguard(std::exchange(segment->idle_after, nullptr));
  return cut(segment, bytes);
}

void BlockCache::put_back(Block* segment) { put_free(segment); }

Block* BlockCache::add_segment(std::byte* data, std::size_t segment_bytes, std::size_t block_bytes, void* stream) {
  auto block = std::make_unique<Block>();
  block->data = data;
  block->bytes = segment_bytes;
  block->stream = stream;
  block->is_small = block_bytes <= kSmall;
  Block* const added = block.get();
  all_[added] = std::move(block);
  return cut(added, block_bytes);
}

std::optional<BlockCache::Unguarded> BlockCache::give_back(Block* block) {
  block->other_streams.clear();
  if (Block* const before = block->before; before != nullptr && before->free) {
    take_free(before);
    join(before, block);
    block = before;
  }
  if (Block* const behind = block->behind; behind != nullptr && behind->free) {
    take_free(behind);
    join(block, behind);
  }
  put_free(block);
  if (!block->is_segment()) return std::nullopt;
  block->unguarded = ++last_unguarded_;
  unguarded_[block->unguarded] = block;
  return Unguarded{block->unguarded, block->stream};
}

bool BlockCache::guard(const Unguarded& segment, void* event) {
  const auto found = unguarded_.find(segment.number);
  if (found == unguarded_.end()) return false;
  found->second->idle_after = event;
  found->second->unguarded = 0;
  unguarded_.erase(found);
  return true;
}

void BlockCache::drain(const std::function<void(std::byte*, std::size_t, void*)>& release) {
  std::vector<Block*> segments;
  for (const auto& [key, list] : free_) {
    for (Block* const block : list) {
      if (block->is_segment()) segments.push_back(block);
    }
  }
  for (Block* const block : segments) {
    take_free(block);
    release(block->data, block->bytes, block->idle_after);
    all_.erase(block);
  }
}

}  // namespace lockstep::cuda
