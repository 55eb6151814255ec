// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/cudart/blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>

#include "tests/fakes/cudart/fiber.h"
#include "tests/fakes/cudart/runtime.h"

namespace lockstep::fake_cuda {

namespace {

constexpr std::size_t kSharedBytes = 48 * 1024;
constexpr unsigned kMostThreads = 1024;

std::atomic<std::uint64_t> launches{0};
std::mutex settings_mutex;
std::optional<std::uint64_t> chosen_seed;
std::optional<std::pair<std::int64_t, std::int64_t>> chosen_blocks;
std::set<std::pair<int, const void*>> loaded;

enum class Waits { no, for_block, for_warp };

struct Thread {
  int index = 0;
  Waits waits = Waits::no;
  bool has_ended = false;
  Fiber* fiber = nullptr;  // once it has begun
};

struct Warp {
  std::uint64_t values[2][kWarp] = {};  // of this exchange and of the last one, which some may still read
  int arrived = 0;
  unsigned exchanges = 0;
};

struct Shared {
  const void* place = nullptr;
  std::vector<std::byte> bytes;
};

// One launch, on the stream's thread.
class Execution {
 public:
  Execution(std::string name, unsigned blocks, unsigned threads, const std::function<void()>& body, std::uint64_t seed)
      : name_(std::move(name)), blocks_(blocks), body_(body), threads_(threads), random_(seed) {}
  void run();

  // Of the thread that runs.
  Thread& current() { return *current_; }
  std::int64_t block() const { return block_; }
  std::int64_t blocks() const { return blocks_; }
  int threads() const { return static_cast<int>(threads_.size()); }
  void wait_for_block();
  std::uint64_t exchange(std::uint64_t bits, int offset);
  unsigned vote(bool value);
  void* shared(const void* place, std::size_t bytes);
  void report(const std::string& what);

 private:
  friend void fiber_main(void*);
  void run_block();
  void run_next(Fiber& self, bool is_free);
  void block_thread(Waits waits);
  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
  Thread* pick();

  const std::string name_;
  const std::int64_t blocks_;
  const std::function<void()>& body_;
  std::vector<Thread> threads_;
  std::minstd_rand random_;
  std::int64_t block_ = 0;
  bool is_greedy_ = false;  // of this block: a warp runs ahead of the others as far as it can
  int at_barrier_ = 0;
  int ended_ = 0;
  std::vector<std::int64_t> order_;  // of the blocks
  std::vector<Warp> warps_;
  std::vector<Thread*> ready_;
  std::deque<Shared> shared_;
  std::size_t shared_bytes_ = 0;
  Thread* current_ = nullptr;
  bool has_reported_ = false;
};

thread_local Execution* running = nullptr;

// Of one stream's thread. Those that a violation left in the middle of a kernel are dropped.
struct Fibers {
  Fiber main;
  std::vector<std::unique_ptr<Fiber>> all;
  std::vector<Fiber*> idle;
};

Fibers& fibers() {
  thread_local Fibers own;
  return own;
}

void fiber_main(void*) {
  for (;;) {
    Execution& execution = *running;
    Thread* const thread = execution.current_;
    Fiber* const self = thread->fiber;
    execution.body_();
    thread->has_ended = true;
    thread->fiber = nullptr;
    ++execution.ended_;
    execution.run_next(*self, true);
  }
}

Thread* Execution::pick() {
  if (!is_greedy_) std::swap(ready_[below(ready_.size())], ready_.back());
  Thread* const thread = ready_.back();
  ready_.pop_back();
  return thread;
}

// From `self`, which waits or, if it is free, has nothing to do, to the thread whose turn it is: one that begins does
// so on a free fiber, so that threads which meet no barrier follow each other as calls do. Back to the main one if no
// thread can go on. Returns once somebody comes back to `self`, and at once where it is to go on itself.
void Execution::run_next(Fiber& self, bool is_free) {
  Fibers& own = fibers();
  Fiber* next = &own.main;
  if (!ready_.empty()) {
    current_ = pick();
    current_->waits = Waits::no;
    if (current_->fiber == nullptr && is_free) {
      current_->fiber = &self;
    } else if (current_->fiber == nullptr) {
      if (own.idle.empty()) {
        own.all.push_back(std::make_unique<Fiber>(&fiber_main, nullptr));
        own.idle.push_back(own.all.back().get());
      }
      current_->fiber = own.idle.back();
      own.idle.pop_back();
    }
    next = current_->fiber;
  }
  if (next == &self) return;
  if (is_free) own.idle.push_back(&self);
  self.switch_to(*next);
}

void Execution::run_block() {
  at_barrier_ = ended_ = 0;
  is_greedy_ = below(2) == 0;
  warps_.assign((threads_.size() + kWarp - 1) / kWarp, {});
  ready_.clear();
  for (std::size_t i = 0; i < threads_.size(); ++i) {
    threads_[i] = {.index = static_cast<int>(i)};
    ready_.push_back(&threads_[i]);
  }
  std::shuffle(ready_.begin(), ready_.end(), random_);
  for (Shared& part : shared_) std::memset(part.bytes.data(), 0xff, part.bytes.size());
  run_next(fibers().main, false);
  if (ended_ == threads()) return;
  int in_exchange = 0;
  for (Thread& thread : threads_) {
    in_exchange += thread.waits == Waits::for_warp ? 1 : 0;
    if (thread.fiber == nullptr) continue;
    auto& all = fibers().all;
    all.erase(std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.get() == thread.fiber; }));
  }
  current_ = nullptr;
  report(
      fmt::format("of the {} threads of block {}, {} wait at a barrier, {} in an exchange of their warp, and {} have "
                  "ended: all of them have to come to it, or none",
                  threads(), block_, at_barrier_, in_exchange, ended_));
}

void Execution::run() {
  running = this;
  std::pair<std::int64_t, std::int64_t> range{0, blocks_};
  {
    const std::lock_guard lock(settings_mutex);
    if (chosen_blocks) range = {chosen_blocks->first, std::min(chosen_blocks->second, blocks_ - chosen_blocks->first)};
  }
  for (std::int64_t i = 0; i < range.second; ++i) order_.push_back(range.first + i);
  std::shuffle(order_.begin(), order_.end(), random_);
  for (const std::int64_t block : order_) {
    block_ = block;
    run_block();
  }
  running = nullptr;
}

void Execution::block_thread(Waits waits) {
  current_->waits = waits;
  run_next(*current_->fiber, false);
}

void Execution::wait_for_block() {
  if (++at_barrier_ == threads()) {
    at_barrier_ = 0;
    for (Thread& thread : threads_) ready_.push_back(&thread);
  }
  block_thread(Waits::for_block);
}

std::uint64_t Execution::exchange(std::uint64_t bits, int offset) {
  const int index = current_->index;
  Warp& warp = warps_[static_cast<std::size_t>(index / kWarp)];
  const auto side = warp.exchanges % 2;
  const int lane = index % kWarp;
  warp.values[side][lane] = bits;
  if (++warp.arrived == kWarp) {
    warp.arrived = 0;
    ++warp.exchanges;
    for (int i = 0; i < kWarp; ++i) ready_.push_back(&threads_[static_cast<std::size_t>(index - lane + i)]);
  }
  block_thread(Waits::for_warp);
  return warp.values[side][lane + offset < kWarp ? lane + offset : lane];
}

unsigned Execution::vote(bool value) {
  exchange(value ? 1 : 0, 0);
  const int index = current_->index;
  const Warp& warp = warps_[static_cast<std::size_t>(index / kWarp)];
  // The exchange that has just ended: nobody can have ended the next one without this thread.
  const auto side = (warp.exchanges - 1) % 2;
  unsigned bits = 0;
  for (int lane = 0; lane < kWarp; ++lane) {
    if (warp.values[side][lane] != 0) bits |= 1u << lane;
  }
  return bits;
}

void* Execution::shared(const void* place, std::size_t bytes) {
  for (Shared& part : shared_) {
    if (part.place == place) return part.bytes.data();
  }
  shared_bytes_ += bytes;
  if (shared_bytes_ > kSharedBytes) {
    report(fmt::format("its shared memory takes {} bytes, and a block has {}", shared_bytes_, kSharedBytes));
  }
  shared_.push_back({place, std::vector<std::byte>(bytes, std::byte{0xff})});
  return shared_.back().bytes.data();
}

void Execution::report(const std::string& what) {
  if (has_reported_) return;
  has_reported_ = true;
  const std::string who = current_ == nullptr ? "" : fmt::format("thread {} of block {} ", current_->index, block_);
  Runtime::get().report(fmt::format("kernel {}<<<{}, {}>>>: {}{}", name_, blocks_, threads(), who, what));
}

}  // namespace

void load(const void* kernel, int device) {
  const std::lock_guard lock(settings_mutex);
  loaded.emplace(device, kernel);
}

cudaError_t launch(cudaStream_t stream, const std::string& name, const void* kernel, unsigned blocks, unsigned threads,
                   std::function<void()> thread, const std::vector<Range>& reads, const std::vector<Range>& writes) {
  if (blocks == 0 || blocks > 0x7fffffffu || threads == 0 || threads > kMostThreads)
    return cudaErrorInvalidConfiguration;
  Runtime& runtime = Runtime::get();
  cudaError_t result = cudaSuccess;
  if (!runtime.begin("cudaLaunchKernel", result)) return runtime.finish(result);
  std::uint64_t seed = 0;
  bool is_loaded = false;
  {
    const std::lock_guard lock(settings_mutex);
    is_loaded = loaded.count({runtime.physical(runtime.current()), kernel}) != 0;
    seed = chosen_seed ? *chosen_seed : runtime.seed();
  }
  if (!is_loaded) runtime.report(fmt::format("kernel {} was not loaded before its launch", name));
  seed = (seed + ++launches) * 0x9e3779b97f4a7c15u >> 20;
  return enqueue(
      stream, fmt::format("kernel {}<<<{}, {}>>>", name, blocks, threads),
      [name, blocks, threads, thread = std::move(thread), seed] {
        // Not on the stack, which a leak checker can't read while the thread is on a fiber's.
        std::make_unique<Execution>(name, blocks, threads, thread, seed)->run();
      },
      reads, writes);
}

bool may_access(const void* data, std::int64_t i, std::int64_t number, std::int64_t count, std::size_t size,
                bool writes, std::size_t alignment) {
  const char* const does = writes ? "writes" : "reads";
  std::string wrong;
  const auto address = reinterpret_cast<std::uintptr_t>(data) + static_cast<std::size_t>(i) * size;
  if (i < 0 || number > count - i) {
    wrong = fmt::format("{} elements {} to {} of a span of {}", does, i, i + number, count);
  } else if (address % alignment != 0) {
    wrong = fmt::format("{} {} bytes at once at {:#x}, which is not a multiple of {}", does,
                        static_cast<std::size_t>(number) * size, address, alignment);
  } else {
    return true;
  }
  if (running != nullptr) running->report(wrong);
  return false;
}

void* shared_memory(const void* place, std::size_t bytes) { return running->shared(place, bytes); }

int thread_index() { return running->current().index; }
int thread_count() { return running->threads(); }
std::int64_t block_index() { return running->block(); }
std::int64_t block_count() { return running->blocks(); }
void wait_for_block() { running->wait_for_block(); }
std::uint64_t exchange_in_warp(std::uint64_t bits, int offset) { return running->exchange(bits, offset); }
unsigned vote_in_warp(bool value) { return running->vote(value); }

void order_threads_by(std::uint64_t seed) {
  const std::lock_guard lock(settings_mutex);
  chosen_seed = seed;
  launches = 0;
}

OnlyBlocks::OnlyBlocks(std::int64_t first, std::int64_t count) {
  const std::lock_guard lock(settings_mutex);
  chosen_blocks = {first, count};
}
OnlyBlocks::~OnlyBlocks() {
  const std::lock_guard lock(settings_mutex);
  chosen_blocks.reset();
}

}  // namespace lockstep::fake_cuda
