// SPDX-License-Identifier: Apache-2.0
// The progress of each rank of a host, and the end of its program, in memory of its launcher's that every rank maps:
// the launcher can read it after any end of the rank, and a step costs the rank a store.
//
// Heartbeats say the same up to half a second late, and ranks that all end within that time send none. The launcher has
// only heartbeats of a rank that does not reach its memory: one that runs as another user, or in another namespace of
// processes.
//
// The program of a rank may be behind a command that the launcher started, such as `sh -c './train | tee log'`, whose
// exit code is another one. The program writes its own exit code as it calls exit() or returns from main().
//
// A rank has three words: one of its steps, 0 before the first one, then one more than those that it has seen done; one
// of its program, 0 before it has come to init_process_group, then its pid and its state; and one of the last snapshot,
// 0 before the first one, then one more than its step. Before them lies the
// launcher's own word: the meaning of a SIGTERM that the launcher sends for a reason of its own (docs/adr/0072).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "runtime/base/unique_fd.h"

namespace lockstep {

// The launcher's reason to stop its ranks; `none`: it passes on a signal from elsewhere.
enum class LauncherStop : std::uint64_t { none, ends_ranks, takes_host_in };

// The process that called init_process_group last as a rank.
struct RankProgram {
  int pid = 0;                        // in its own namespace
  bool has_left = false;              // it let its groups go in order
  std::optional<int> exit_code = {};  // the argument of exit(); nullopt: it runs, was killed, or called _exit()
};

// The launcher's side: one at a time in a process.
class StepBoard {
 public:
  // If the kernel grants no such memory, the board never knows anything.
  explicit StepBoard(int ranks);
  ~StepBoard();
  StepBoard(const StepBoard&) = delete;
  StepBoard& operator=(const StepBoard&) = delete;

  // The steps done in all starts of the job, as the rank counts; 0: it has begun its first. nullopt: it has begun none,
  // or does not reach this memory.
  std::optional<std::int64_t> steps_done(int local_rank) const;
  // The step of the last snapshot that the rank knows of, as written by it or resumed from; nullopt: none, or it does
  // not reach this memory.
  std::optional<std::int64_t> saved_step(int local_rank) const;
  // The rank's program; nullopt: no program has come as that rank, or it does not reach this memory.
  std::optional<RankProgram> program(int local_rank) const;
  // Sets the reason of the next SIGTERM to the ranks. Call it before the signal is sent.
  void set_stop(LauncherStop why);

 private:
  std::uint64_t word(int local_rank, std::size_t which) const;
  std::optional<std::int64_t> number(int local_rank, std::size_t which) const;

  UniqueFd file_;  // open for the sake of the ranks, which look for it in this process
  std::size_t words_count_;
  std::atomic<std::uint64_t>* words_ = nullptr;  // mapped; null: no memory
};

// The rank's side: one place for the process, whatever groups it has. Any thread. Nothing is kept before
// open_step_board(), nor without a board, nor in a child that the program has forked. open_step_board() makes this
// process the rank's program.
void open_step_board(int launcher_pid, int local_rank);
// Notes that the program's last group has ended in order: if the process is killed now, no other rank is affected.
void keep_program_left() noexcept;
// Notes the exit code, for code that ends the process by _exit(); exit() notes it by itself.
void keep_exit_code(int code) noexcept;
void keep_step_begun() noexcept;
// The largest of several numbers stays.
void keep_steps_done(std::int64_t steps) noexcept;
void keep_saved_step(std::int64_t step) noexcept;
// The launcher's word; `none` without a board.
LauncherStop launcher_stop() noexcept;

}  // namespace lockstep
