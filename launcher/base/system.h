// SPDX-License-Identifier: Apache-2.0
// System calls that the launcher's files share: every return code checked, close-on-exec everywhere.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include <string_view>

#include "runtime/base/unique_fd.h"
#include "runtime/checkpoint/atomic_file.h"

namespace lockstep::launcher {

struct Pipe {
  UniqueFd read_end;
  UniqueFd write_end;
};
// Throws SystemError.
Pipe make_pipe();

// Opens a file for reading and writing (`create`: replaces it, mode 0644; InvalidArgument if a link, a pipe or a device
// has its name). Throws SystemError with the path.
UniqueFd open_file(const std::string& path, bool create);

// The text as a whole file, in the place of the one that was there: whole or not at all (AtomicFile). Throws Error with
// the path.
void write_file(const std::string& path, std::string_view text,
                checkpoint::AtomicFile::Name name = checkpoint::AtomicFile::Name::of_lockstep);

// A descriptor that is ready once the process has ended; nothing if there is no such process any more.
// Throws SystemError.
UniqueFd open_pidfd(pid_t pid);

void set_non_blocking(int fd);

// All of it. Throws SystemError.
void write_to_stdout(std::string_view text);
// A line on stderr. What can't be written is dropped: there is nowhere to say so but in the exit code.
void print_error(std::string_view line);
// The exit code that `perform` returns, with the log's label `command`; after an Error "lockstep COMMAND: ERROR" on
// stderr, and `code`.
int exit_code_of(const std::string& command, int code, const std::function<int()>& perform);

}  // namespace lockstep::launcher
