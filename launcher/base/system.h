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

// Opens a file for reading and writing. `create` replaces it with mode 0644; InvalidArgument if a link, a pipe or a
// device has its name. Throws SystemError with the path.
UniqueFd open_file(const std::string& path, bool create);

// Replaces a file by the text, whole or not at all (AtomicFile). Throws Error with the path.
void write_file(const std::string& path, std::string_view text,
                checkpoint::AtomicFile::Name name = checkpoint::AtomicFile::Name::of_lockstep);

// Returns a descriptor that becomes readable when the process has ended; empty if the process no longer exists. Throws
// SystemError.
UniqueFd open_pidfd(pid_t pid);

void set_non_blocking(int fd);

// Writes the whole text. Throws SystemError.
void write_to_stdout(std::string_view text);
// Writes a line to stderr. A failed write is ignored: only the exit code could report it.
void print_error(std::string_view line);
// Returns the exit code of `perform`, which runs with the log's label `command`. After an Error it prints "lockstep
// COMMAND: ERROR" on stderr and returns `code`.
int exit_code_of(const std::string& command, int code, const std::function<int()>& perform);

}  // namespace lockstep::launcher
