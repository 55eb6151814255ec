// SPDX-License-Identifier: Apache-2.0
// How far each rank of a host has come, and how its program ended, in memory of its launcher's that every rank maps:
// the launcher reads it after whatever end of the rank, and a step costs the rank a store.
//
// Heartbeats say the same up to half a second late, and of ranks that all end within that time nobody is left to say
// it. They are what there is of a rank that does not reach its launcher's memory: one that runs as another user, or in
// another namespace of processes.
//
// The program of a rank may be behind a command that the launcher started, such as `sh -c './train | tee log'`, whose
// exit code is another one. The program says its own as it calls exit() or returns from main().
//
// A rank has two words: of its steps, 0 before the first one, then one more than those that it has seen done; and of
// its program, 0 before it has come to init_process_group, then its pid and its state.
// Before them lies the launcher's own word: what the SIGTERM means that it sends for a reason of its own
// (docs/adr/0072).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "runtime/base/unique_fd.h"

namespace lockstep {

// Why a launcher has its ranks stop; `none`: somebody else wants them to, whose signal it passes on.
enum class LauncherStop : std::uint64_t { none, ends_ranks, takes_host_in };

// The process that called init_process_group last as a rank.
struct RankProgram {
  int pid = 0;                        // in its own namespace
  bool has_left = false;              // it let its groups go in order
  std::optional<int> exit_code = {};  // of exit(); nothing: it runs, was killed, or called _exit()
};

// The launcher's side: one at a time in a process.
class StepBoard {
 public:
  // Where the kernel grants no such memory nothing is ever known.
  explicit StepBoard(int ranks);
  ~StepBoard();
  StepBoard(const StepBoard&) = delete;
  StepBoard& operator=(const StepBoard&) = delete;

  // In all starts of the job, as the rank counts; 0: it has begun its first. Nothing: it has begun none, or does not
  // reach this memory.
  std::optional<std::int64_t> steps_done(int local_rank) const;
  // Nothing: no program has come as that rank, or it does not reach this memory.
  std::optional<RankProgram> program(int local_rank) const;
  // Sets the reason of the next SIGTERM to the ranks. Call it before the signal is sent.
  void set_stop(LauncherStop why);

 private:
  std::uint64_t word(int local_rank, std::size_t which) const;

  UniqueFd file_;  // open for the sake of the ranks, which look for it in this process
  std::size_t words_count_;
  std::atomic<std::uint64_t>* words_ = nullptr;  // mapped; null: there is no such memory
};

// The rank's side: one place for the process, whatever groups it has. Any thread. Nothing is kept before
// open_step_board(), nor where there is no board, nor of a program in a child that it has forked.
// This process is the rank's program from now on.
void open_step_board(int launcher_pid, int local_rank);
// Its last group has ended in order: whatever kills the process now is nobody's loss.
void keep_program_left() noexcept;
// For who ends the process by _exit(); exit() says it by itself.
void keep_exit_code(int code) noexcept;
void keep_step_begun() noexcept;
// The largest of several numbers stays.
void keep_steps_done(std::int64_t steps) noexcept;
// The launcher's word; `none` where there is no board.
LauncherStop launcher_stop() noexcept;

}  // namespace lockstep
