// System calls that the launcher's files share: every return code checked, close-on-exec everywhere.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <string>
#include <string_view>

#include "runtime/base/deadline.h"
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

// Waits until `fd` can be read or has ended; false if the deadline passed first. Throws SystemError.
bool wait_readable(int fd, const Deadline& deadline);

void set_non_blocking(int fd);

// A line on stderr. What can't be written is dropped: there is nowhere to say so but in the exit code.
void print_error(std::string_view line);

// Raises this process's soft limit of open files as far as `wanted` or the hard limit. Returns what it was before.
// Throws SystemError.
rlimit raise_descriptor_limit(rlim_t wanted);

}  // namespace lockstep::launcher
