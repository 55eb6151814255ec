// SPDX-License-Identifier: Apache-2.0
// A cache of blocks per thread: a training step asks for the same sizes again and again, and fresh pages cost more than
// most operations. Sizes are rounded up to classes, four to each power of two, so at most a quarter is wasted.
//
// A thread keeps no more blocks of a class than it once had in use: what loader threads make and the training thread
// frees does not pile up there.
#include <algorithm>
#include <array>
#include <bit>
#include <new>
#include <vector>

#include "runtime/tensor/cpu/cpu_kernels.h"

namespace lockstep::cpu {
namespace {

constexpr std::align_val_t kAlignment{64};
constexpr std::size_t kSmallest = 64;
// Bytes that one thread keeps at most; the rest goes back to the system.
constexpr std::size_t kKeptBytes = std::size_t{1} << 30;

// Under sanitizers each block is fresh, so that they see a use after free.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCaches = false;
#else
constexpr bool kCaches = true;
#endif

struct SizeClass {
  std::size_t index;
  std::size_t bytes;
};

SizeClass size_class(std::size_t bytes) {
  if (bytes <= kSmallest) return {0, kSmallest};
  const auto power = static_cast<std::size_t>(std::bit_width(bytes - 1)) - 1;  // 2^power < bytes <= 2^(power + 1)
  const std::size_t quarter = std::size_t{1} << (power - 2);
  const std::size_t steps = (bytes - (std::size_t{1} << power) + quarter - 1) / quarter;  // 1..4
  return {(power - 6) * 4 + steps, (std::size_t{1} << power) + steps * quarter};
}

class Cache {
 public:
  Cache() { alive_ = true; }
  ~Cache() {
    alive_ = false;
    for (Class& c : classes_) {
      for (void* block : c.blocks) ::operator delete(block, kAlignment);
    }
  }
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  // Null if there is none; the caller makes one then.
  void* take(const SizeClass& size) {
    Class& c = classes_[size.index];
    c.most_in_use = std::max(c.most_in_use, ++c.in_use);
    if (c.blocks.empty()) return nullptr;
    void* block = c.blocks.back();
    c.blocks.pop_back();
    kept_ -= size.bytes;
    return block;
  }
  // False if the caller shall free it.
  bool keep(void* block, const SizeClass& size) {
    Class& c = classes_[size.index];
    if (c.in_use > 0) --c.in_use;  // 0: another thread's block
    if (c.blocks.size() + c.in_use >= c.most_in_use || kept_ + size.bytes > kKeptBytes) return false;
    c.blocks.push_back(block);
    kept_ += size.bytes;
    return true;
  }
  std::size_t kept() const { return kept_; }

  // This thread's, or null while the thread ends: tensors in static memory outlive it.
  static Cache* of_thread() {
    thread_local Cache cache;
    return alive_ ? &cache : nullptr;
  }

 private:
  struct Class {
    std::vector<void*> blocks;  // free
    std::size_t in_use = 0;
    std::size_t most_in_use = 0;
  };

  static thread_local bool alive_;
  std::array<Class, 4 * 58 + 1> classes_;
  std::size_t kept_ = 0;
};

thread_local bool Cache::alive_ = false;

}  // namespace

void* allocate(std::size_t bytes) {
  const SizeClass size = size_class(bytes);
  if (kCaches) {
    if (Cache* cache = Cache::of_thread()) {
      if (void* block = cache->take(size)) return block;
    }
  }
  return ::operator new(kCaches ? size.bytes : bytes, kAlignment);
}

void release(void* data, std::size_t bytes) noexcept {
  const SizeClass size = size_class(bytes);
  try {
    Cache* cache = kCaches ? Cache::of_thread() : nullptr;
    if (cache != nullptr && cache->keep(data, size)) return;
  } catch (const std::bad_alloc&) {  // no room to remember the block: give it back
  }
  ::operator delete(data, kAlignment);
}

std::size_t cached_bytes() {
  Cache* cache = kCaches ? Cache::of_thread() : nullptr;
  return cache == nullptr ? 0 : cache->kept();
}

}  // namespace lockstep::cpu
