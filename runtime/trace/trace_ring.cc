// SPDX-License-Identifier: Apache-2.0
#include "runtime/trace/trace_ring.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <memory>

#include "lockstep/base/error.h"
#include "runtime/base/memory_file.h"
#include "runtime/base/regular_file.h"
#include "runtime/base/resource_limit.h"

namespace lockstep::trace {
namespace {

static_assert(Word::is_always_lock_free && sizeof(Word) == sizeof(std::uint64_t));
static_assert(std::endian::native == std::endian::little);

constexpr std::uint64_t kMagic = 0x3243'5254'4b43'4f4c;  // "LOCKTRC2"
enum : std::size_t {
  kKind,
  kCapacity,
  kWallClock,
  kRank,
  kWorldSize,
  kCount,
  kFindings,
  kPid,
  kStepsBefore,
  kBegan,
  kHeldAt
};
constexpr std::size_t kHost = 16;
constexpr std::size_t kRunId = 80;
constexpr std::size_t kTextWords = 64;
constexpr std::size_t kFirstFinding = 144;
constexpr std::size_t kCommand = 512;
constexpr std::size_t kHeaderWords = kCommand + kTextWords;
constexpr std::size_t kSlotWords = 8;
static_assert(kFirstFinding + TraceRing::kMostFindings * kSlotWords <= kCommand);
constexpr std::size_t kMostEvents = std::size_t{1} << 24;
constexpr std::int64_t kMostNumber = std::int64_t{1} << 61;  // ns: the year 2043
constexpr int kMostRanks = 1 << 20;
constexpr const char* kMemoryName = "lockstep-trace";

std::size_t first_scalar(std::size_t events) { return kHeaderWords + events * kSlotWords; }
std::size_t bytes_of(std::size_t events) { return (first_scalar(events) + ScalarTable::kWords) * sizeof(Word); }

template <typename Clock>
std::int64_t now_of() {
  return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
}

void* map(int fd, std::size_t bytes, int protection) {
  const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* const memory = ::mmap(nullptr, bytes, protection, flags, fd, 0);
  if (memory == MAP_FAILED)
    throw SystemError(
        fmt::format("can't map {} bytes for the trace of a rank (raise the limit on address space, ulimit -v)", bytes),
        errno);
  return memory;
}

// A reader of the old file keeps that one.
UniqueFd create_file(const std::string& path, std::size_t bytes) {
  if (!may_file_have(bytes)) throw SystemError(fmt::format("allocate {} bytes for {}", bytes, path), EFBIG);
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) throw SystemError("remove " + path, errno);
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file) throw SystemError("create " + path, errno);
  const int error = ::posix_fallocate(file.get(), 0, static_cast<off_t>(bytes));
  if (error == 0) return file;
  ::unlink(path.c_str());
  throw SystemError(fmt::format("allocate {} bytes for {}", bytes, path), error);
}

// Event or finding number `number`; false if the slot has another, or is being written.
bool read_slot(const Word* slot, std::uint64_t number, TraceRing::Words& event) {
  const bool was_whole = slot[0].load(std::memory_order_acquire) == number + 1;
  for (std::size_t i = 0; i < event.size(); ++i) event[i] = slot[i + 1].load(std::memory_order_acquire);
  // A writer has the slot if its number is another by now. Each word above was loaded before the number below.
  return was_whole && slot[0].load(std::memory_order_relaxed) == number + 1;
}

void write_slot(Word* slot, std::uint64_t number, const TraceRing::Words& words) {
  // Each store is a release, so that a reader who sees one of the words sees that the slot is being written.
  slot[0].store(0, std::memory_order_relaxed);
  for (std::size_t i = 0; i < words.size(); ++i) slot[i + 1].store(words[i], std::memory_order_release);
  slot[0].store(number + 1, std::memory_order_release);
}

TraceRing::Contents read_words(const Word* words, std::size_t capacity) {
  const auto load = [&](std::size_t i) { return words[i].load(std::memory_order_acquire); };
  TraceRing::Contents contents{.identity = {.rank = static_cast<int>(load(kRank)),
                                            .world_size = static_cast<int>(load(kWorldSize)),
                                            .pid = static_cast<std::int64_t>(load(kPid)),
                                            .host = text_in(words + kHost, kTextWords),
                                            .run_id = text_in(words + kRunId, kTextWords),
                                            .command = text_in(words + kCommand, kTextWords)},
                               .wall_clock = static_cast<std::int64_t>(load(kWallClock)),
                               .began = static_cast<std::int64_t>(load(kBegan)),
                               .steps_before = static_cast<std::int64_t>(load(kStepsBefore)),
                               .scalars = ScalarTable::read(words + first_scalar(capacity))};
  for (std::size_t i = 0; i < kHeld; ++i) contents.held[i] = static_cast<std::int64_t>(load(kHeldAt + i));
  const std::uint64_t count = load(kCount);
  const std::uint64_t first = count > capacity ? count - capacity : 0;
  contents.lost = first;
  contents.events.reserve(static_cast<std::size_t>(count - first));
  for (std::uint64_t number = first; number < count; ++number) {
    TraceRing::Words event;
    if (read_slot(words + kHeaderWords + (number & (capacity - 1)) * kSlotWords, number, event)) {
      contents.events.push_back(event);
    } else {
      ++contents.lost;
    }
  }
  const std::uint64_t findings = std::min<std::uint64_t>(load(kFindings), TraceRing::kMostFindings);
  for (std::uint64_t number = 0; number < findings; ++number) {
    TraceRing::Words finding;
    if (read_slot(words + kFirstFinding + number * kSlotWords, number, finding)) contents.findings.push_back(finding);
  }
  return contents;
}

}  // namespace

TraceRing::TraceRing(const std::string& path, const TraceIdentity& identity, std::size_t events) : events_(events) {
  const std::size_t bytes = bytes_of(events);
  // Without a file in memory nobody else sees it.
  file_ = path.empty() ? make_memory_file(kMemoryName, bytes) : create_file(path, bytes);
  words_ = static_cast<Word*>(map(file_.get(), bytes, PROT_READ | PROT_WRITE));
  if (!path.empty()) file_.reset();
  const auto store = [&](std::size_t i, auto value) {
    words_[i].store(static_cast<std::uint64_t>(value), std::memory_order_relaxed);
  };
  store(kCapacity, events);
  const std::int64_t now = now_of<std::chrono::steady_clock>();
  store(kWallClock, now_of<std::chrono::system_clock>() - now);
  store(kBegan, now);
  store(kRank, identity.rank);
  store(kWorldSize, identity.world_size);
  store(kPid, identity.pid);
  put_text(words_ + kHost, kTextWords, identity.host);
  put_text(words_ + kRunId, kTextWords, identity.run_id);
  put_text(words_ + kCommand, kTextWords, identity.command);
  scalars_.emplace(words_ + first_scalar(events));
  words_[kKind].store(kMagic, std::memory_order_release);  // last: without it the file is not a trace yet
}

TraceRing::~TraceRing() { ::munmap(words_, bytes_of(events_)); }

void TraceRing::put(const Words& words) noexcept {
  const std::uint64_t number = words_[kCount].fetch_add(1, std::memory_order_relaxed);
  write_slot(words_ + kHeaderWords + (number & (events_ - 1)) * kSlotWords, number, words);
}

void TraceRing::put_finding(const Words& words) noexcept {
  const std::uint64_t number = words_[kFindings].fetch_add(1, std::memory_order_relaxed);
  if (number < kMostFindings) write_slot(words_ + kFirstFinding + number * kSlotWords, number, words);
}

void TraceRing::set_steps_before(std::int64_t steps) noexcept {
  words_[kStepsBefore].store(static_cast<std::uint64_t>(steps), std::memory_order_relaxed);
}

void TraceRing::raise_held(Held held, std::int64_t bytes) noexcept {
  Word& most = words_[kHeldAt + static_cast<std::size_t>(held)];
  const auto now = static_cast<std::uint64_t>(bytes);
  for (std::uint64_t seen = most.load(std::memory_order_relaxed);
       seen < now && !most.compare_exchange_weak(seen, now, std::memory_order_relaxed);) {
  }
}

TraceRing::Contents TraceRing::read() const { return read_words(words_, events_); }

TraceRing::Contents TraceRing::read_file(const std::string& path) {
  const UniqueFd file = open_regular(path, O_RDONLY);
  if (!file) throw SystemError("open " + path, errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw SystemError("stat " + path, errno);
  const auto bytes = static_cast<std::size_t>(status.st_size);
  if (bytes < bytes_of(1))
    throw CorruptData(fmt::format("{} has {} bytes, too few for a trace; leave this file out", path, bytes));
  const auto unmap = [bytes](const Word* words) { ::munmap(const_cast<Word*>(words), bytes); };
  const std::unique_ptr<const Word, decltype(unmap)> words(static_cast<const Word*>(map(file.get(), bytes, PROT_READ)),
                                                           unmap);
  const std::uint64_t kind = words.get()[kKind].load(std::memory_order_acquire);
  const std::uint64_t capacity = words.get()[kCapacity].load(std::memory_order_relaxed);
  if (kind != kMagic || !std::has_single_bit(capacity) || capacity > kMostEvents || bytes != bytes_of(capacity)) {
    throw CorruptData(
        fmt::format("{} is not a trace of a rank, or another version of lockstep wrote it; leave this file out, or use "
                    "that version",
                    path));
  }
  Contents contents = read_words(words.get(), static_cast<std::size_t>(capacity));
  for (const std::int64_t number : {contents.wall_clock, contents.began, contents.steps_before}) {
    if (number > -kMostNumber && number < kMostNumber) continue;
    throw CorruptData(
        fmt::format("{} is damaged: its header has a time or a step of {}; leave this file out", path, number));
  }
  const auto& [rank, world_size, pid, host, run_id, command] = contents.identity;
  if (rank >= 0 && rank < world_size && world_size <= kMostRanks) return contents;
  throw CorruptData(
      fmt::format("{} is damaged: its header has rank {} of {}; leave this file out", path, rank, world_size));
}

std::string trace_in_memory_of(int pid) { return memory_file_of(pid, kMemoryName); }

}  // namespace lockstep::trace
