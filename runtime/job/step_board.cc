// SPDX-License-Identifier: Apache-2.0
#include "runtime/job/step_board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/base/memory_file.h"

namespace lockstep {
namespace {

using Word = std::atomic<std::uint64_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == 8, "processes share it");

constexpr const char* kName = "lockstep-words";  // another name for each layout
constexpr std::size_t kFirstRank = 1;            // word; before it lies the launcher's
constexpr std::size_t kWords = 3;                // of a rank: steps, program, snapshot
// States of a program, beside its pid in the upper half of the word. An exit code is added to the last.
constexpr std::uint64_t kJoined = 1;
constexpr std::uint64_t kLeft = 2;
constexpr std::uint64_t kExited = 256;

Word* map(int fd, std::size_t words, int protection) {
  void* const memory = ::mmap(nullptr, words * sizeof(Word), protection, MAP_SHARED, fd, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<Word*>(memory);
}

// This process's, and its launcher's; they stay mapped until it ends.
std::atomic<Word*> own_words = nullptr;
std::atomic<Word*> launchers_word = nullptr;
std::atomic<int> program_pid = 0;

void raise_to(std::size_t which, std::uint64_t value) noexcept {
  Word* const words = own_words.load(std::memory_order_acquire);
  if (words == nullptr) return;
  Word* const word = words + which;
  std::uint64_t old = word->load(std::memory_order_relaxed);
  while (old < value && !word->compare_exchange_weak(old, value, std::memory_order_relaxed)) {
  }
}

void keep_state(std::uint64_t state) noexcept {
  Word* const words = own_words.load(std::memory_order_acquire);
  const int pid = program_pid.load();
  if (words != nullptr && pid == ::getpid()) {
    words[1].store(static_cast<std::uint64_t>(pid) << 32 | state, std::memory_order_relaxed);
  }
}

// Registers the exit handler once, also in a process that opens the board again, or was forked by one that has it.
void join_as_program() {
  static const int asked = ::on_exit([](int status, void*) { keep_exit_code(status); }, nullptr);
  static_cast<void>(asked);
  program_pid.store(::getpid());
  keep_state(kJoined);
}

}  // namespace

StepBoard::StepBoard(int ranks) : words_count_(kFirstRank + kWords * static_cast<std::size_t>(ranks)) {
  file_ = make_memory_file(kName, words_count_ * sizeof(Word));
  if (file_) words_ = map(file_.get(), words_count_, PROT_READ | PROT_WRITE);
}

StepBoard::~StepBoard() {
  if (words_ != nullptr) ::munmap(words_, words_count_ * sizeof(Word));
}

std::optional<std::int64_t> StepBoard::number(int local_rank, std::size_t which) const {
  const std::uint64_t value = word(local_rank, which);
  if (value == 0) return std::nullopt;
  return static_cast<std::int64_t>(value - 1);
}

std::optional<std::int64_t> StepBoard::steps_done(int local_rank) const { return number(local_rank, 0); }
std::optional<std::int64_t> StepBoard::saved_step(int local_rank) const { return number(local_rank, 2); }

void StepBoard::set_stop(LauncherStop why) {
  if (words_ != nullptr) words_[0].store(static_cast<std::uint64_t>(why), std::memory_order_release);
}

std::optional<RankProgram> StepBoard::program(int local_rank) const {
  const std::uint64_t value = word(local_rank, 1);
  if (value == 0) return std::nullopt;
  const auto state = static_cast<std::uint32_t>(value);
  RankProgram program{.pid = static_cast<int>(value >> 32), .has_left = state >= kLeft};
  if (state >= kExited) program.exit_code = static_cast<int>(state - kExited);
  return program;
}

std::uint64_t StepBoard::word(int local_rank, std::size_t which) const {
  if (words_ == nullptr) return 0;
  return words_[kFirstRank + kWords * static_cast<std::size_t>(local_rank) + which].load(std::memory_order_relaxed);
}

void open_step_board(int launcher_pid, int local_rank) {
  if (own_words.load(std::memory_order_acquire) != nullptr) return join_as_program();  // of an earlier group
  const std::string path = memory_file_of(launcher_pid, kName);
  const UniqueFd file(path.empty() ? -1 : ::open(path.c_str(), O_RDWR | O_CLOEXEC));
  const std::size_t index = kFirstRank + kWords * static_cast<std::size_t>(local_rank);
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 ||
      static_cast<std::size_t>(status.st_size) < (index + kWords) * sizeof(Word)) {
    log_debug("steps: no memory of the launcher (pid {}) is in reach: it hears of them by heartbeats", launcher_pid);
    return;
  }
  Word* const words = map(file.get(), index + kWords, PROT_READ | PROT_WRITE);
  if (words == nullptr) return log_debug("steps: mmap: {}", errno_text(errno));
  launchers_word.store(words, std::memory_order_release);
  own_words.store(words + index, std::memory_order_release);
  join_as_program();
}

void keep_program_left() noexcept { keep_state(kLeft); }
void keep_exit_code(int code) noexcept { keep_state(kExited + static_cast<unsigned>(code & 0xff)); }
void keep_step_begun() noexcept { raise_to(0, 1); }
void keep_steps_done(std::int64_t steps) noexcept { raise_to(0, static_cast<std::uint64_t>(steps) + 1); }
void keep_saved_step(std::int64_t step) noexcept { raise_to(2, static_cast<std::uint64_t>(step) + 1); }

LauncherStop launcher_stop() noexcept {
  const Word* const word = launchers_word.load(std::memory_order_acquire);
  return word == nullptr ? LauncherStop::none : static_cast<LauncherStop>(word->load(std::memory_order_acquire));
}

}  // namespace lockstep
