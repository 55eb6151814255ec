// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/step_board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/base/memory_file.h"

namespace lockstep {
namespace {

using Word = std::atomic<std::uint64_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == 8, "processes share it");

constexpr const char* kName = "lockstep-board";  // "lockstep-steps" had no word of the launcher
constexpr std::size_t kFirstRank = 1;            // word; before it lies the launcher's

Word* map(int fd, std::size_t words, int protection) {
  void* const memory = ::mmap(nullptr, words * sizeof(Word), protection, MAP_SHARED, fd, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<Word*>(memory);
}

// This process's word, and its launcher's; they stay mapped until it ends.
std::atomic<Word*>& own_word() {
  static std::atomic<Word*> word = nullptr;
  return word;
}
std::atomic<Word*>& launchers_word() {
  static std::atomic<Word*> word = nullptr;
  return word;
}

void raise_to(std::uint64_t value) noexcept {
  Word* const word = own_word().load(std::memory_order_acquire);
  if (word == nullptr) return;
  std::uint64_t old = word->load(std::memory_order_relaxed);
  while (old < value && !word->compare_exchange_weak(old, value, std::memory_order_relaxed)) {
  }
}

}  // namespace

StepBoard::StepBoard(int ranks) : words_count_(kFirstRank + static_cast<std::size_t>(ranks)) {
  file_ = make_memory_file(kName, words_count_ * sizeof(Word));
  if (file_) words_ = map(file_.get(), words_count_, PROT_READ | PROT_WRITE);
}

StepBoard::~StepBoard() {
  if (words_ != nullptr) ::munmap(words_, words_count_ * sizeof(Word));
}

std::optional<std::int64_t> StepBoard::steps_done(int local_rank) const {
  if (words_ == nullptr) return std::nullopt;
  const std::uint64_t value = words_[kFirstRank + static_cast<std::size_t>(local_rank)].load(std::memory_order_relaxed);
  if (value == 0) return std::nullopt;
  return static_cast<std::int64_t>(value - 1);
}

void StepBoard::set_stop(LauncherStop why) {
  if (words_ != nullptr) words_[0].store(static_cast<std::uint64_t>(why), std::memory_order_release);
}

void open_step_board(int launcher_pid, int local_rank) {
  if (own_word().load(std::memory_order_acquire) != nullptr) return;  // of an earlier group
  const std::string path = memory_file_of(launcher_pid, kName);
  const UniqueFd file(path.empty() ? -1 : ::open(path.c_str(), O_RDWR | O_CLOEXEC));
  const std::size_t index = kFirstRank + static_cast<std::size_t>(local_rank);
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 ||
      static_cast<std::size_t>(status.st_size) < (index + 1) * sizeof(Word)) {
    log_debug("steps: no memory of the launcher (pid {}) is in reach: it hears of them by heartbeats", launcher_pid);
    return;
  }
  Word* const words = map(file.get(), index + 1, PROT_READ | PROT_WRITE);
  if (words == nullptr) return log_debug("steps: mmap: {}", errno_text(errno));
  launchers_word().store(words, std::memory_order_release);
  own_word().store(words + index, std::memory_order_release);
}

void keep_step_begun() noexcept { raise_to(1); }
void keep_steps_done(std::int64_t steps) noexcept { raise_to(static_cast<std::uint64_t>(steps) + 1); }

LauncherStop launcher_stop() noexcept {
  const Word* const word = launchers_word().load(std::memory_order_acquire);
  return word == nullptr ? LauncherStop::none : static_cast<LauncherStop>(word->load(std::memory_order_acquire));
}

}  // namespace lockstep
