// SPDX-License-Identifier: Apache-2.0
// The state of a process by the kernel's word: why it may be silent.
#pragma once

#include <string>
#include <string_view>

#include "runtime/base/internal_api.h"

namespace lockstep {

enum class ProcessState {
  unknown,  // a process of another host or pid namespace, or one that /proc does not show
  gone,     // no such process, or a zombie
  stopped,  // by SIGSTOP, Ctrl-Z, SIGTTIN ...
  traced,   // a debugger is attached
  running,  // all others: runs, sleeps, waits for a disk
};

// The state of a process of this pid namespace. Never throws.
LOCKSTEP_INTERNAL_API ProcessState process_state(int pid) noexcept;
// The state that a text of /proc/PID/status states.
ProcessState process_state_of_status(std::string_view status);
// True if a debugger is attached to this process. Never throws.
bool this_process_is_traced() noexcept;
// Equal on two processes of one kernel (base/host.h) exactly if a pid means the same process to both. Empty if /proc
// doesn't tell.
std::string pid_namespace();

}  // namespace lockstep
