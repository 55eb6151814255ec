// SPDX-License-Identifier: Apache-2.0
#include "runtime/job/launcher_guard.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/base/printable.h"
#include "runtime/base/procfs.h"
#include "runtime/base/quiet_thread.h"
#include "runtime/base/unique_fd.h"

namespace lockstep {
namespace {

constexpr std::array<std::string_view, 7> kMpiLaunchers = {"mpirun",  "mpiexec", "orterun", "orted",
                                                           "prterun", "prte",    "prted"};

bool is_mpi_launcher(const Ancestor& ancestor) {
  return std::find(kMpiLaunchers.begin(), kMpiLaunchers.end(), ancestor.command) != kMpiLaunchers.end();
}

void read_pipe(const std::string& text, LauncherGuard& guard) {
  const auto colon = text.find(':');
  const auto fd = parse_int(std::string_view(text).substr(0, colon));
  const auto inode = colon == std::string::npos ? std::nullopt : parse_int(std::string_view(text).substr(colon + 1));
  if (!fd || *fd < 0 || *fd > INT_MAX || (colon != std::string::npos && (!inode || *inode < 0))) {
    throw InvalidArgument(
        fmt::format("environment: LOCKSTEP_LAUNCHER_FD='{}' is not FD or FD:INODE; unset it, since only `lockstep run` "
                    "sets this variable",
                    printable(text)));
  }
  guard.fd = static_cast<int>(*fd);
  if (inode) guard.inode = static_cast<std::uint64_t>(*inode);
}

[[noreturn]] void end_this_process() {
  ::kill(::getpid(), SIGKILL);
  for (;;) ::pause();  // the signal is on its way
}

// Ends the process when `fd` hangs up (a pipe whose writers are gone) or turns readable (the pidfd of an ended
// process).
void watch(UniqueFd fd, short events) {
  auto body = [owned = std::move(fd), events] {
    for (;;) {
      pollfd entry{.fd = owned.get(), .events = events, .revents = 0};
      if (::poll(&entry, 1, -1) < 0) {
        if (errno == EINTR) continue;
        log_error(
            "launcher guard: this process can't watch its launcher any more (poll: {}); if the launcher is killed, end "
            "this process yourself",
            errno_text(errno));
        return;
      }
      if ((entry.revents & POLLNVAL) != 0) {
        log_error(
            "launcher guard: the program closed the descriptor of LOCKSTEP_LAUNCHER_FD, so this process no longer ends "
            "with its launcher; leave this descriptor open");
        return;
      }
      end_this_process();
    }
  };
  start_quiet_thread(std::move(body)).detach();
}

void watch_pipe(const LauncherGuard& guard) {
  struct stat status = {};
  const bool is_pipe = ::fstat(guard.fd, &status) == 0 && S_ISFIFO(status.st_mode);
  if (!is_pipe || (guard.inode && *guard.inode != status.st_ino)) {
    log_warn(
        "launcher guard: descriptor {} of LOCKSTEP_LAUNCHER_FD is not the launcher's pipe: a wrapper closed it; so if "
        "`lockstep run` is killed with -9, this process stays; let the wrapper pass descriptors on, or exec the "
        "program",
        guard.fd);
    return;
  }
  UniqueFd own(::fcntl(guard.fd, F_DUPFD_CLOEXEC, 3));
  if (!own) throw SystemError("fcntl(F_DUPFD_CLOEXEC) of LOCKSTEP_LAUNCHER_FD", errno);
  watch(std::move(own), 0);
}

void watch_process(int launcher) {
  UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, launcher, 0)));
  const int error = process ? 0 : errno;
  if (error != 0 && error != ESRCH) {
    log_warn(
        "launcher guard: pidfd_open({}) failed: {}; so if the launcher is killed with -9, this process stays; allow "
        "pidfd_open (Linux 5.3, the container's seccomp profile), or start the program without a wrapper",
        launcher, errno_text(error));
    return;
  }
  // The launcher's number may be another process's by now: look again, with the descriptor in hand.
  const auto ancestors = ancestors_of_this_process();
  const bool there = std::ranges::any_of(ancestors, [&](const Ancestor& ancestor) { return ancestor.pid == launcher; });
  if (!process || !there) end_this_process();
  watch(std::move(process), POLLIN);
}

void ask_for_death_signal(int launcher) {
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) throw SystemError("prctl(PR_SET_PDEATHSIG)", errno);
  if (::getppid() != launcher) end_this_process();  // it went before the kernel knew that we care
  // The request is the calling thread's and ends with it; only the main thread lasts as long as the process.
  if (::gettid() != ::getpid()) watch_process(launcher);
}

}  // namespace

std::vector<Ancestor> ancestors_of_this_process() {
  std::vector<Ancestor> result;
  for (int pid = ::getppid(); pid > 0;) {
    const auto entry = process_entry(pid);
    if (!entry) break;  // ended just now, or hidden
    result.push_back({.pid = pid, .command = entry->name});
    pid = entry->parent;
  }
  return result;
}

LauncherGuard plan_launcher_guard(const Environment& environment, const std::vector<Ancestor>& ancestors) {
  LauncherGuard guard;
  if (const auto launcher = environment.get_int("LOCKSTEP_LAUNCHER_PID")) {
    if (*launcher < 1 || *launcher > INT_MAX) {
      throw InvalidArgument(
          fmt::format("environment: LOCKSTEP_LAUNCHER_PID={} is not a process id; unset it, since only `lockstep run` "
                      "sets this variable",
                      *launcher));
    }
    guard.pid = static_cast<int>(*launcher);
    if (!ancestors.empty() && ancestors.front().pid == guard.pid) {
      guard.kind = LauncherGuard::Kind::death_signal;
      guard.why = "`lockstep run` is the parent";
    } else if (const auto pipe = environment.get("LOCKSTEP_LAUNCHER_FD")) {
      read_pipe(*pipe, guard);
      guard.kind = LauncherGuard::Kind::watch_pipe;
      guard.why = "a wrapper is between `lockstep run` and this process";
    } else {
      guard.why = "`lockstep run` is not the parent and left no pipe";
    }
    return guard;
  }
  if (environment.has("OMPI_COMM_WORLD_RANK")) {
    const auto found = std::find_if(ancestors.begin(), ancestors.end(), is_mpi_launcher);
    if (found == ancestors.end()) {
      guard.why = "no mpirun among the ancestors";
      return guard;
    }
    guard.pid = found->pid;
    const bool parent = found == ancestors.begin();
    guard.kind = parent ? LauncherGuard::Kind::death_signal : LauncherGuard::Kind::watch_process;
    guard.why = fmt::format("{} is {}", found->command, parent ? "the parent" : "an ancestor");
    return guard;
  }
  guard.why = "no launcher that ends its ranks";
  return guard;
}

void install_guard(const LauncherGuard& guard) {
  static std::atomic<bool> up{false};
  if (up.exchange(true)) return;
  log_debug("launcher guard: {}", guard.why);
  switch (guard.kind) {
    case LauncherGuard::Kind::none: break;
    case LauncherGuard::Kind::death_signal: ask_for_death_signal(guard.pid); break;
    case LauncherGuard::Kind::watch_pipe: watch_pipe(guard); break;
    case LauncherGuard::Kind::watch_process: watch_process(guard.pid); break;
  }
}

}  // namespace lockstep
