// SPDX-License-Identifier: Apache-2.0
// System calls that the launcher's files share: every return code checked, close-on-exec everywhere.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "runtime/base/unique_fd.h"

namespace lockstep::launcher {

struct Pipe {
  UniqueFd read_end;
  UniqueFd write_end;
};
// Throws SystemError.
Pipe make_pipe();

// Opens a file for reading and writing (`create`: replaces it, mode 0644). Throws SystemError with the path.
UniqueFd open_file(const std::string& path, bool create);

// A descriptor that is ready once the process has ended; nothing if there is no such process any more.
// Throws SystemError.
UniqueFd open_pidfd(pid_t pid);

void set_non_blocking(int fd);

// A line on stderr. What can't be written is dropped: there is nowhere to say so but in the exit code.
void print_error(std::string_view line);

}  // namespace lockstep::launcher
