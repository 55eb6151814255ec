// SPDX-License-Identifier: Apache-2.0
// Who watches the launcher: chosen from variables and ancestors, and shown on processes that are left behind.
#include "runtime/job/launcher_guard.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <iterator>
#include <thread>

#include "lockstep/base/error.h"
#include "runtime/base/unique_fd.h"

namespace lockstep::launcher_guard_test {
namespace {

using Kind = LauncherGuard::Kind;

using Variables = std::map<std::string, std::string, std::less<>>;

LauncherGuard plan(Variables variables, const std::vector<Ancestor>& ancestors) {
  return plan_launcher_guard(Environment(std::move(variables)), ancestors);
}

TEST(LauncherGuardPlan, IsChosenFromVariablesAndAncestors) {
  const std::vector<Ancestor> bash = {{100, "bash"}, {1, "init"}};
  const Variables by_hand = {{"RANK", "0"}, {"WORLD_SIZE", "2"}}, mpi = {{"OMPI_COMM_WORLD_RANK", "0"}};
  const auto of_lockstep = [](const char* pid, const char* pipe) {
    return Variables{{"LOCKSTEP_LAUNCHER_PID", pid}, {"LOCKSTEP_LAUNCHER_FD", pipe}};
  };
  struct Case {
    const char* name;
    Variables variables;
    std::vector<Ancestor> ancestors;
    Kind kind = Kind::none;
    int pid = 0;
    int fd = -1;
    std::optional<std::uint64_t> inode = {};
  };
  const Case cases[] = {
      {"started by hand", {}, bash},
      {"by hand, as a rank", by_hand, bash},
      {"by hand, under mpirun", by_hand, {{100, "mpirun"}}},
      {"the launcher is the parent", of_lockstep("100", "7"), {{100, "lockstep"}}, Kind::death_signal, 100},
      {"a wrapper between", of_lockstep("9", "7:1234"), {{100, "sh"}, {9, "lockstep"}}, Kind::watch_pipe, 9, 7, 1234},
      {"a pipe of an older launcher", of_lockstep("99", "7"), {}, Kind::watch_pipe, 99, 7},
      {"no pipe and another parent", of_lockstep("99", ""), bash, Kind::none, 99},
      {"orted is the parent", mpi, {{50, "orted"}, {1, "init"}}, Kind::death_signal, 50},
      {"mpirun and a wrapper", mpi, {{60, "sh"}, {50, "mpirun"}, {1, "init"}}, Kind::watch_process, 50},
      {"no mpirun", mpi, bash}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    const LauncherGuard guard = plan(one.variables, one.ancestors);
    EXPECT_EQ(guard.kind, one.kind);
    EXPECT_EQ(guard.pid, one.pid);
    EXPECT_EQ(guard.fd, one.fd);
    EXPECT_EQ(guard.inode, one.inode);
  }
  for (const char* pid : {"x", "0"}) EXPECT_THROW(plan(of_lockstep(pid, ""), {}), InvalidArgument) << pid;
  for (const char* fd : {"x", "-1", "7:", "7:x", ":1"}) {
    EXPECT_THROW(plan(of_lockstep("1", fd), {}), InvalidArgument) << fd;
  }
}

TEST(Ancestors, TheFirstIsTheParent) {
  const auto ancestors = ancestors_of_this_process();
  ASSERT_FALSE(ancestors.empty());
  EXPECT_EQ(ancestors.front().pid, getppid());
  EXPECT_FALSE(ancestors.front().command.empty());
}

// --- Processes. The pipe `alive` is held open by each process in question and by nobody else, so that its end shows
// that they are gone, without asking about pids.

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

Pipe make_pipe() {
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

void say_ready(const Pipe& pipe) {
  if (::write(pipe.write.get(), "r", 1) != 1) ::_exit(99);
}

// 'r' if somebody said ready, 0 once all writers are gone, -1 if neither came within 20 s.
int next_event(const UniqueFd& fd) {
  pollfd entry{.fd = fd.get(), .events = POLLIN, .revents = 0};
  if (::poll(&entry, 1, 20000) <= 0) return -1;
  char byte = 0;
  return ::read(fd.get(), &byte, 1) == 1 ? byte : 0;
}

int wait_status(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return -1;
  }
  return status;
}

template <typename Body>
pid_t in_child(Body body) {
  const pid_t child = ::fork();
  EXPECT_GE(child, 0);
  if (child == 0) ::_exit(body());
  return child;
}

[[noreturn]] int stay() {
  for (;;) ::pause();
}

void expect_killed(pid_t child) {
  const int status = wait_status(child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
}

void expect_exit(pid_t child, int code) {
  const int status = wait_status(child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == code) << status;
}

LauncherGuard guard_of(Kind kind, int pid) { return {.kind = kind, .pid = pid, .fd = -1, .inode = {}, .why = "test"}; }

// Kills a launcher, in which start_rank(its pid, alive) has started a rank that says ready.
template <typename StartRank>
void expect_rank_ends_with_launcher(StartRank start_rank) {
  Pipe alive = make_pipe();
  const pid_t launcher = in_child([&] {
    start_rank(::getpid(), alive);
    alive.write.reset();
    return stay();
  });
  alive.write.reset();
  ASSERT_EQ(next_event(alive.read), 'r');
  ::kill(launcher, SIGKILL);
  EXPECT_EQ(next_event(alive.read), 0) << "the rank is left";
  wait_status(launcher);
}

TEST(LauncherGuard, AProcessEndsWhenThePipeOfItsLauncherDoes) {
  Pipe launcher = make_pipe();
  Pipe alive = make_pipe();
  const pid_t rank = in_child([&] {
    launcher.write.reset();
    struct stat status = {};
    if (::fstat(launcher.read.get(), &status) != 0) return 98;
    install_guard(
        {.kind = Kind::watch_pipe, .pid = 1, .fd = launcher.read.get(), .inode = status.st_ino, .why = "test"});
    say_ready(alive);
    return stay();
  });
  alive.write.reset();
  launcher.read.reset();
  ASSERT_EQ(next_event(alive.read), 'r');
  launcher.write.reset();
  expect_killed(rank);
}

TEST(LauncherGuard, ADescriptorThatIsAnotherPipeIsNotWatched) {
  Pipe other = make_pipe();
  expect_exit(in_child([&] {
                install_guard({.kind = Kind::watch_pipe, .pid = 1, .fd = other.read.get(), .inode = 1, .why = "test"});
                other.write.reset();  // hangs it up
                return ::fcntl(other.read.get(), F_GETFD) >= 0 ? 7 : 8;
              }),
              7);
}

TEST(LauncherGuard, KillingAParentEndsItsRankThoughItsJoiningThreadHasEnded) {
  for (const bool is_joined_by_thread : {false, true}) {
    expect_rank_ends_with_launcher([=](pid_t launcher, const Pipe& alive) {
      in_child([&] {
        const auto join = [&] { install_guard(guard_of(Kind::death_signal, launcher)); };
        is_joined_by_thread ? std::thread(join).join() : join();
        say_ready(alive);
        return stay();
      });
    });
  }
}

// As a container's seccomp profile does. False if this kernel has no filters.
bool forbid_pidfd_open() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog filter{.len = std::size(program), .filter = program};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST(LauncherGuard, AJobStartsWherePidfdsAreForbidden) {
  const int launcher = ::getpid();
  expect_exit(in_child([&] {
                if (!forbid_pidfd_open()) return 98;
                try {
                  install_guard(guard_of(Kind::watch_process, launcher));
                } catch (const Error&) {
                  return 8;
                }
                return 7;
              }),
              7);
}

TEST(LauncherGuard, ALauncherThatWentBeforeEndsTheRankAtOnce) {
  expect_killed(in_child([] {
    install_guard(guard_of(Kind::death_signal, ::getpid()));  // nobody is its own parent
    return 1;
  }));
}

TEST(LauncherGuard, KillingAnAncestorEndsTheRankBehindAWrapper) {
  expect_rank_ends_with_launcher([](pid_t launcher, Pipe& alive) {
    in_child([&] {
      const pid_t rank = in_child([&] {
        install_guard(guard_of(Kind::watch_process, launcher));
        say_ready(alive);
        return stay();
      });
      alive.write.reset();
      wait_status(rank);  // as a shell does
      return 0;
    });
  });
}

}  // namespace
}  // namespace lockstep::launcher_guard_test
