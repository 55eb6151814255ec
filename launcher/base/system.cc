// SPDX-License-Identifier: Apache-2.0
#include "launcher/base/system.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <span>

#include "lockstep/base/error.h"
#include "runtime/base/io.h"
#include "runtime/base/logging.h"
#include "runtime/base/printable.h"
#include "runtime/base/regular_file.h"

namespace lockstep::launcher {

Pipe make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw SystemError("make a pipe", errno);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

UniqueFd open_file(const std::string& path, bool create) {
  // The launcher creates its own files: another kind of file with that name is refused, not followed or waited for.
  UniqueFd fd = create ? open_regular(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_NOFOLLOW, 0644)
                       : UniqueFd(uninterrupted([&] { return open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOCTTY); }));
  if (!fd) throw SystemError(fmt::format("open {}", path), errno);
  return fd;
}

void write_file(const std::string& path, std::string_view text, checkpoint::AtomicFile::Name name) {
  checkpoint::AtomicFile file(path, name);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

UniqueFd open_pidfd(pid_t pid) {
  const auto fd = syscall(SYS_pidfd_open, pid, 0);  // always close-on-exec
  if (fd < 0 && errno == ESRCH) return {};
  if (fd < 0)
    throw SystemError("can't watch a process with pidfd_open (needs Linux 5.3, and a container that allows it)", errno);
  return UniqueFd(static_cast<int>(fd));
}

void set_non_blocking(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) throw SystemError("fcntl O_NONBLOCK", errno);
}

void write_to_stdout(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    throw SystemError("write to stdout", errno);
  }
}

void print_error(std::string_view line) {
  const std::string text = printable_lines(line) + '\n';
  std::fwrite(text.data(), 1, text.size(), stderr);
}

int exit_code_of(const std::string& command, int code, const std::function<int()>& perform) {
  set_log_label(command);
  try {
    return perform();
  } catch (const Error& error) {
    print_error(fmt::format("lockstep {}: {}", command, error.what()));
    return code;
  }
}

}  // namespace lockstep::launcher
