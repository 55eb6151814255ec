// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/guardian.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <set>
#include <vector>

#include "launcher/process/process_table.h"
#include "lockstep/base/error.h"
#include "runtime/base/io.h"
#include "runtime/base/logging.h"
#include "runtime/net/stream.h"

namespace lockstep::launcher {
namespace {

using namespace std::chrono_literals;

constexpr pid_t kDisarm = 0;
constexpr int kPipe = 3;
constexpr auto kKillLimit = 10s;

// Marks by which processes of the job are recognised. The launcher has the pipe too, but is spared: after an error it
// exits by itself.
struct Signs {
  pid_t launcher = 0;
  std::set<pid_t> groups = {};
  std::string variable;
  std::string life_pipe;
};

bool belongs_to_job(const ProcessEntry& entry, const Signs& signs) {
  return entry.alive() && entry.pid != signs.launcher &&
         (signs.groups.contains(entry.group) || started_with(entry.pid, signs.variable) ||
          has_open(entry.pid, signs.life_pipe));
}

// Kills the job's processes and waits for their end; returns false if there were none.
bool kill_job(const Signs& signs, const Deadline& deadline) {
  std::vector<UniqueFd> killed;
  for (const auto& entry : process_table()) {
    if (entry.pid == getpid() || !belongs_to_job(entry, signs)) continue;
    UniqueFd pidfd = open_pidfd(entry.pid);
    if (!pidfd) continue;
    // The descriptor refers to this process now. Look again, since the pid may have been reused before.
    const auto again = process_entry(entry.pid);
    if (!again || !belongs_to_job(*again, signs)) continue;
    syscall(SYS_pidfd_send_signal, pidfd.get(), SIGKILL, nullptr, 0);  // fails only if the process has ended by itself
    killed.push_back(std::move(pidfd));
  }
  for (const auto& pidfd : killed) net::wait_readable(pidfd.get(), deadline);
  return !killed.empty();
}

// Leaves the launcher's process group, terminal and folder, and blocks all signals.
void detach(int pipe, const char* name) {
  setsid();
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  prctl(PR_SET_NAME, name);
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (chdir("/") != 0 || null < 0 || dup2(pipe, kPipe) < 0) _exit(EXIT_FAILURE);
  for (int fd = 0; fd < 3; ++fd) {
    if (dup2(null, fd) < 0) _exit(EXIT_FAILURE);
  }
}

[[noreturn]] void end_job(const Signs& signs) {
  try {
    const auto deadline = Deadline::after(kKillLimit);
    // Repeats until a look finds none: a process may have forked between the look and its end.
    while (kill_job(signs, deadline) && !deadline.expired()) {
    }
  } catch (const std::exception&) {  // the error can't be reported; the groups can still be killed
    for (const pid_t group : signs.groups) kill(-group, SIGKILL);
  }
  _exit(EXIT_SUCCESS);
}

[[noreturn]] void guard(Signs signs) {
  while (true) {
    pid_t group = 0;
    // Each record is written in one call and smaller than PIPE_BUF.
    const auto bytes = uninterrupted([&] { return read(kPipe, &group, sizeof group); });
    if (bytes != sizeof group) break;
    if (group == kDisarm) _exit(EXIT_SUCCESS);
    if (group > 0) {
      signs.groups.insert(group);
    } else {
      signs.groups.erase(-group);
    }
  }
  end_job(signs);
}

Signs signs_of(const Guardian::Marks& marks) {
  struct stat life {};
  if (fstat(marks.life_fd, &life) != 0) throw SystemError("fstat of the life pipe", errno);
  return {.launcher = getpid(), .variable = marks.variable, .life_pipe = fmt::format("pipe:[{}]", life.st_ino)};
}

// Starts the second guardian, which knows no groups. Its parent ends at once, so that it is not a child of the
// launcher. Returns the launcher's ends of two pipes: a byte into the first says that all is well, and its end says
// that the launcher has gone; the second ends with the guardian.
// has gone; the other one ends with the guardian.
Pipe start_second(const Guardian::Marks& marks) {
  const Signs signs = signs_of(marks);
  Pipe word_pipe = make_pipe(), life = make_pipe();
  const pid_t parent = fork();
  if (parent < 0) throw SystemError("fork the launcher's second guardian", errno);
  if (parent > 0) {
    uninterrupted([&] { return waitpid(parent, nullptr, 0); });
    return {.read_end = std::move(life.read_end), .write_end = std::move(word_pipe.write_end)};
  }
  if (fork() != 0) _exit(EXIT_SUCCESS);
  close(marks.life_end);
  word_pipe.write_end.reset();
  const int own_life = fcntl(life.write_end.get(), F_DUPFD, kPipe + 1);
  detach(word_pipe.read_end.get(), "job-guard");  // a name that `pkill lockstep` does not match
  if (own_life < 0 || dup2(own_life, kPipe + 1) < 0) _exit(EXIT_FAILURE);
  syscall(SYS_close_range, kPipe + 2, ~0U, 0);
  char word = 0;
  if (uninterrupted([&] { return read(kPipe, &word, sizeof word); }) == sizeof word) _exit(EXIT_SUCCESS);
  end_job(signs);
}

}  // namespace

// The second guardian starts first, so that it does not hold the first one's pipe open.
Guardian::Guardian(const Marks& marks) : marks_(marks) {
  second_ = start_second(marks_);
  start();
}

void Guardian::replace(const std::vector<pid_t>& groups) {
  start();
  for (const pid_t group : groups) tell(group);
}

void Guardian::start() {
  const Signs signs = signs_of(marks_);
  Pipe pipe = make_pipe();
  Pipe detached = make_pipe();  // ends when the guardian has left this process group, which may be killed as a whole
  pid_ = fork();
  if (pid_ < 0) throw SystemError("fork the launcher's guardian", errno);
  if (pid_ == 0) {
    // The ranks end when this pipe does, so only the launcher may hold its write end. The close precedes detach(),
    // which may reuse its numbers.
    close(marks_.life_fd);
    close(marks_.life_end);
    detach(pipe.read_end.get(), "lockstep-guard");
    pipe.write_end.reset();
    detached.write_end.reset();
    // Descriptors with which the launcher was started. Before Linux 5.9 they stay open until this process ends, which
    // is harmless.
    syscall(SYS_close_range, kPipe + 1, ~0U, 0);
    guard(signs);
  }
  pipe_ = std::move(pipe.write_end);
  detached.write_end.reset();
  net::wait_readable(detached.read_end.get(), Deadline::never());
}

void Guardian::forget(pid_t group) const { tell(-group); }

void Guardian::disarm() const {
  tell(kDisarm);
  const auto sent = uninterrupted([&] { return write(second_.write_end.get(), "", 1); });
  static_cast<void>(sent);  // a killed guardian does not read
}

void Guardian::tell(pid_t word) const {
  const auto bytes = uninterrupted([&] { return write(pipe_.get(), &word, sizeof word); });
  // A killed guardian does not read (SIGPIPE is ignored); the launcher has reported its death.
  if (bytes != sizeof word && errno != EPIPE) {
    log_error(
        "can't write to the guardian process {}: {}; if this launcher is killed now, some ranks may continue: in this "
        "case end these ranks by hand",
        pid_, errno_text(errno));
  }
}

// The end of a pipe without a word before it means that the launcher died. The destructor waits for both guardians in
// any case, since a process that waits for the launcher takes its end for the end of the job.
Guardian::~Guardian() {
  pipe_.reset();
  uninterrupted([&] { return waitpid(pid_, nullptr, 0); });
  second_.write_end.reset();
  net::wait_readable(second_.read_end.get(), Deadline::never());  // its end says that the guardian has ended
}

}  // namespace lockstep::launcher
