// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/spawn.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "launcher/base/system.h"
#include "runtime/base/io.h"
#include "runtime/base/printable.h"

namespace lockstep::launcher {
namespace {

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const auto& text : texts) result.push_back(const_cast<char*>(text.c_str()));  // execve does not modify the words
  result.push_back(nullptr);
  return result;
}

// Runs between fork and exec: other threads' locks may be held forever, so it must not allocate, log or throw.
[[noreturn]] void become_rank(const SpawnRequest& request, char* const* arguments, char* const* environment,
                              pid_t launcher, int error_fd) {
  const pid_t self = getpid();
  const auto attempt = [error_fd](int result) {
    if (result >= 0) return;
    const int error = errno;
    const auto written = write(error_fd, &error, sizeof error);
    _exit(written == sizeof error ? 127 : 126);
  };
  // The process group is set before the registration, since the guardian kills groups; the registration precedes exec,
  // so that the guardian knows every program that runs.
  attempt(setpgid(0, 0));
  attempt(prctl(PR_SET_PDEATHSIG, SIGKILL));
  if (getppid() != launcher) _exit(127);  // the launcher died before the line above, so no signal will come
  // A killed guardian leaves a broken pipe. The launcher has reported that; the job continues.
  if (write(request.registration_fd, &self, sizeof self) != sizeof self && errno != EPIPE) attempt(-1);
  attempt(dup2(request.stdin_fd, STDIN_FILENO));
  attempt(dup2(request.stdout_fd, STDOUT_FILENO));
  attempt(dup2(request.stderr_fd, STDERR_FILENO));
  attempt(fcntl(request.inherited_fd, F_SETFD, 0));
  // The launcher ignores these signals, and the program would inherit that.
  attempt(signal(SIGPIPE, SIG_DFL) == SIG_ERR ? -1 : 0);
  attempt(signal(SIGXFSZ, SIG_DFL) == SIG_ERR ? -1 : 0);
  attempt(sigprocmask(SIG_SETMASK, &request.signal_mask, nullptr));
  attempt(net::set_open_files_limit(request.open_files) ? 0 : -1);
  if (request.processors) attempt(sched_setaffinity(0, sizeof(cpu_set_t), &*request.processors));
  attempt(execve(request.path.c_str(), arguments, environment));
  _exit(127);
}

// Returns the part that the kernel did not find, for a file that exists.
std::string missing_part(const std::string& path) {
  std::string line;
  std::ifstream file(path, std::ios::binary);
  if (!std::getline(file, line)) return {};
  if (!line.starts_with("#!")) return ", which wants a dynamic loader that is not on this host";
  return fmt::format(
      ", whose first line names an interpreter, '{}'{}", printable(line.substr(2)),
      line.ends_with('\r') ? ", with the CR of Windows' line ends (sed -i 's/\\r$//' removes them)" : "");
}

}  // namespace

Spawned spawn(const SpawnRequest& request) {
  const auto arguments = pointers(request.arguments);
  const auto environment = pointers(request.environment);
  Pipe failure = make_pipe();  // ends at exec; if exec fails, it carries an error number first
  const pid_t launcher = getpid();
  const pid_t pid = fork();
  if (pid < 0) throw SystemError("fork", errno);
  if (pid == 0) become_rank(request, arguments.data(), environment.data(), launcher, failure.write_end.get());
  failure.write_end.reset();

  int error = 0;
  // The read returns once the child has its group, is registered and runs the program: the launcher may signal the
  // group at once.
  const auto bytes = uninterrupted([&] { return read(failure.read_end.get(), &error, sizeof error); });
  if (bytes == sizeof error) {
    uninterrupted([&] { return waitpid(pid, nullptr, 0); });
    throw ExecError(fmt::format("execute {}{}", request.path, error == ENOENT ? missing_part(request.path) : ""),
                    error);
  }
  return {pid, open_pidfd(pid)};
}

}  // namespace lockstep::launcher
