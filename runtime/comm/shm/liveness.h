// SPDX-License-Identifier: Apache-2.0
// Which ranks' processes are alive, as the kernel knows it.
//
// Each rank holds a POSIX record lock on its own byte of the control memfd, and the kernel releases it when the process
// ends, however it ends and in whatever PID namespace. Ranks that are threads of one process share its fate.
#pragma once

#include "runtime/comm/shm/control.h"

namespace lockstep::shm {

// Takes rank's lock on the control memfd. SystemError if the kernel refuses.
void hold_life_lock(int control_fd, int rank);

// True if the process of `rank` has ended, or has closed the group without a goodbye.
bool process_is_gone(int control_fd, const ControlBlock& control, int rank);

}  // namespace lockstep::shm
