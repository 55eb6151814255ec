// A device's memory in blocks that are kept for the next one who asks: the books only, no call of CUDA.
//
// Blocks are cut from segments, which are what the device gives. Sizes are multiples of 512 bytes. Small blocks (up to
// 1 MiB) come from segments of 2 MiB, others up to 10 MiB from segments of 20 MiB, larger ones have a segment to
// themselves, in steps of 2 MiB. A free block joins free neighbours of its segment. Each belongs to a stream, in whose
// order it is used and used again; a segment that is free as a whole may change its stream.
//
// Threads: the caller's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

namespace lockstep::cuda {

struct Block {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  void* stream = nullptr;
  bool free = false;
  // Neighbours in the segment; a block without any is the whole of it.
  Block* before = nullptr;
  Block* behind = nullptr;
  bool is_small = false;
  // Of a whole free segment: an event in its stream, behind all that uses it. Null: there is none yet.
  void* idle_after = nullptr;
  std::uint64_t unguarded = 0;            // of a whole free segment without one: its number
  std::vector<void*> other_streams = {};  // that use it too

  bool is_segment() const { return before == nullptr && behind == nullptr; }
};

class BlockCache {
 public:
  // Bytes of the block that such a request gets.
  static std::size_t block_bytes(std::size_t bytes);
  // Bytes of the segment that is asked of the device for it.
  static std::size_t segment_bytes(std::size_t block_bytes);

  // The smallest free block of the stream that is large enough, cut to size; null if there is none. `unguard` gets the
  // event of a segment that was idle, for the pool.
  Block* take(std::size_t block_bytes, void* stream, const std::function<void(void*)>& unguard);
  // Of another stream a whole free segment that has an event and for which `may_use` says yes. It is nobody's until one
  // of the next two.
  Block* take_out(std::size_t block_bytes, void* stream, const std::function<bool(const Block&)>& may_use);
  // It is the stream's from now on, and so are all its parts: what is put there next must come behind its event, which
  // `unguard` gets. The block cut from it.
  Block* hand_over(Block* segment, std::size_t block_bytes, void* stream, const std::function<void(void*)>& unguard);
  void put_back(Block* segment);
  // A new segment of this many bytes at `data`, and the block cut from it.
  Block* add_segment(std::byte* data, std::size_t segment_bytes, std::size_t block_bytes, void* stream);
  // A whole segment that has come free and has no event: until guard() only its own stream can have it.
  struct Unguarded {
    std::uint64_t number;
    void* stream;
  };
  // Gives a block back to its stream. Returns the segment that is free as a whole now, if one is.
  std::optional<Unguarded> give_back(Block* block);
  // Its event. False if it was taken meanwhile, perhaps to come free again later: then the event says too little.
  bool guard(const Unguarded& segment, void* event);
  // Takes out every segment that is free as a whole. `release` gets each one's data, bytes and event.
  void drain(const std::function<void(std::byte*, std::size_t, void*)>& release);

  std::size_t free_bytes() const { return free_bytes_; }

 private:
  struct BySize {
    using is_transparent = void;
    bool operator()(const Block* a, const Block* b) const {
      return a->bytes != b->bytes ? a->bytes < b->bytes : a->data < b->data;
    }
    bool operator()(const Block* a, std::size_t bytes) const { return a->bytes < bytes; }
    bool operator()(std::size_t bytes, const Block* b) const { return bytes < b->bytes; }
  };
  struct Key {
    void* stream;
    bool is_small;
    auto operator<=>(const Key&) const = default;
  };
  using FreeList = std::set<Block*, BySize>;

  void put_free(Block* block);
  void take_free(Block* block);
  Block* cut(Block* block, std::size_t bytes);
  void join(Block* first, Block* second);

  std::map<Key, FreeList> free_;
  std::map<Block*, std::unique_ptr<Block>> all_;
  std::map<std::uint64_t, Block*> unguarded_;  // by their number
  std::uint64_t last_unguarded_ = 0;
  std::size_t free_bytes_ = 0;
};

}  // namespace lockstep::cuda
