// SPDX-License-Identifier: Apache-2.0
// Who watches the launcher: chosen from variables and ancestors, and shown on processes that are left behind.
#include "runtime/job/launcher_guard.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
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
#include "tests/support/child.h"

namespace lockstep::launcher_guard_test {
namespace {

using lockstep::testing::Child;
using lockstep::testing::Line;
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

// A forked copy, which does not die with its parent by itself.
template <typename Body>
pid_t in_child(Body body) {
  const pid_t child = ::fork();
  EXPECT_GE(child, 0);
  if (child == 0) ::_exit(body());
  return child;
}

LauncherGuard guard_of(Kind kind, int pid) { return {.kind = kind, .pid = pid, .fd = -1, .inode = {}, .why = "test"}; }

// Puts the guard up, tells that it has, and stays.
int stay_guarded(const LauncherGuard& guard, const Line& line) {
  install_guard(guard);
  line.tell(true);
  return Child::stay();
}

// Kills a launcher, in which start_rank(its pid, line) has started a rank. Both hold the line open, and nobody else
// does, so that its end shows that they are gone, without asking about pids.
template <typename StartRank>
void expect_rank_ends_with_launcher(StartRank start_rank) {
  const Child launcher([&](const Line& line) {
    start_rank(::getpid(), line);
    return Child::stay();
  });
  ASSERT_TRUE(launcher.told<bool>());
  ::kill(launcher.pid(), SIGKILL);
  bool more = false;
  EXPECT_FALSE(launcher.line().hear(more));
}

TEST(LauncherGuard, KillingAParentEndsItsRankThoughItsJoiningThreadHasEnded) {
  for (const bool is_joined_by_thread : {false, true}) {
    expect_rank_ends_with_launcher([=](pid_t launcher, const Line& line) {
      in_child([&] {
        const auto join = [&] { install_guard(guard_of(Kind::death_signal, launcher)); };
        is_joined_by_thread ? std::thread(join).join() : join();
        line.tell(true);
        return Child::stay();
      });
    });
  }
}

TEST(LauncherGuard, KillingAnAncestorEndsTheRankBehindAWrapper) {
  expect_rank_ends_with_launcher([](pid_t launcher, const Line& line) {
    in_child([&] {
      const pid_t rank = in_child([&] { return stay_guarded(guard_of(Kind::watch_process, launcher), line); });
      return ::waitpid(rank, nullptr, 0) == rank ? 0 : 1;  // as a shell does
    });
  });
}

TEST(LauncherGuard, ALauncherThatWentBeforeEndsTheRankAtOnce) {
  Child rank([](const Line& line) { return stay_guarded(guard_of(Kind::death_signal, ::getpid()), line); });
  EXPECT_EQ(rank.wait(), SIGKILL) << "nobody is its own parent";
}

struct Pipe {
  Pipe() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    read.reset(ends[0]);
    write.reset(ends[1]);
  }
  UniqueFd read;
  UniqueFd write;
};

TEST(LauncherGuard, AProcessEndsWhenThePipeOfItsLauncherDoes) {
  Pipe launcher;
  struct stat status = {};
  ASSERT_EQ(::fstat(launcher.read.get(), &status), 0);
  Child rank([&](const Line& line) {
    launcher.write.reset();
    return stay_guarded(
        {.kind = Kind::watch_pipe, .pid = 1, .fd = launcher.read.get(), .inode = status.st_ino, .why = "test"}, line);
  });
  ASSERT_TRUE(rank.told<bool>());
  launcher.write.reset();
  EXPECT_EQ(rank.wait(), SIGKILL);
}

TEST(LauncherGuard, ADescriptorThatIsAnotherPipeIsNotWatched) {
  Pipe other;
  Child rank([&](const Line&) {
    install_guard({.kind = Kind::watch_pipe, .pid = 1, .fd = other.read.get(), .inode = 1, .why = "test"});
    other.write.reset();  // hangs it up
    return ::fcntl(other.read.get(), F_GETFD) >= 0 ? 0 : 8;
  });
  EXPECT_EQ(rank.wait(), 0);
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
  Child rank([&](const Line&) {
    if (!forbid_pidfd_open()) return 98;
    install_guard(guard_of(Kind::watch_process, launcher));
    return 0;
  });
  EXPECT_EQ(rank.wait(), 0);
}

}  // namespace
}  // namespace lockstep::launcher_guard_test
