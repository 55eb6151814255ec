// SPDX-License-Identifier: Apache-2.0
#include "tests/support/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <thread>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "runtime/base/mutex.h"
#include "runtime/base/unique_fd.h"

namespace lockstep::testing {
namespace {

constexpr std::array<std::string_view, 17> kLauncherPrefixes = {
    "LOCKSTEP_", "OMPI_", "PMIX_", "PRTE_", "PMI_",  "MPI_LOCAL", "MV2_",   "SLURM_", "TORCHELASTIC_",
    "HOROVOD_",  "MLX_",  "PALS_", "JSM_",  "FLUX_", "PET_",      "GROUP_", "ROLE_"};
constexpr std::array<std::string_view, 6> kLauncherNames = {
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};

bool names_a_launcher(std::string_view name) {
  for (const auto prefix : kLauncherPrefixes) {
    if (name.starts_with(prefix)) return true;
  }
  for (const auto known : kLauncherNames) {
    if (name == known) return true;
  }
  return false;
}

std::vector<std::string> environment_of(const ProcessOptions& options) {
  Variables variables;
  const auto inherited = Environment::of_process();
  for (const auto& [name, value] : inherited.variables()) {
    if (!names_a_launcher(name)) variables[name] = value;
  }
  variables["LOCKSTEP_TEST_JOB"] = job();
  // A rank that stands still for two seconds is lost, and on a machine that others share a healthy one may.
  variables["LOCKSTEP_LIVENESS"] = "off";
  for (const auto& [name, value] : options.environment) variables[name] = value;
  std::vector<std::string> entries;
  for (const auto& [name, value] : variables) entries.push_back(name + "=" + value);
  return entries;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (auto& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

struct Pipe {
  UniqueFd read_end;
  UniqueFd write_end;
};

Pipe make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw SystemError("pipe2", errno);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::string find_in_path(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const auto search = Environment::of_process().get("PATH").value_or("/usr/bin:/bin");
  std::string_view rest = search;
  while (true) {
    const auto colon = rest.find(':');
    const auto path = fmt::format("{}/{}", rest.substr(0, colon), name);
    if (access(path.c_str(), X_OK) == 0) return path;
    if (colon == std::string_view::npos) return name;
    rest.remove_prefix(colon + 1);
  }
}

int count_in(std::string_view text, std::string_view wanted) {
  int count = 0;
  for (auto at = text.find(wanted); at != std::string_view::npos; at = text.find(wanted, at + wanted.size())) ++count;
  return count;
}

}  // namespace

struct Process::State {
  std::string name;
  pid_t pid = -1;
  bool reaped = false;
  std::thread reader;
  UniqueFd stop_reader;  // closed: the reader leaves

  Mutex mutex;
  Condition changed;
  std::string out GUARDED_BY(mutex);
  std::string err GUARDED_BY(mutex);
  bool ended GUARDED_BY(mutex) = false;  // both streams have

  void read_all(UniqueFd out_fd, UniqueFd err_fd, UniqueFd in_fd, std::string input, UniqueFd stopped);
  void show() {
    MutexLock lock(mutex);
    fmt::print(stderr, "---- {} (pid {}) wrote on stdout:\n{}---- and on stderr:\n{}----\n", name, pid, out, err);
  }
};

void Process::State::read_all(UniqueFd out_fd, UniqueFd err_fd, UniqueFd in_fd, std::string input, UniqueFd stopped) {
  std::size_t sent = 0;
  if (input.empty()) in_fd.reset();
  while (out_fd || err_fd) {
    std::array<pollfd, 4> entries{
        {{out_fd.get(), POLLIN, 0}, {err_fd.get(), POLLIN, 0}, {in_fd.get(), POLLOUT, 0}, {stopped.get(), POLLIN, 0}}};
    if (poll(entries.data(), entries.size(), -1) < 0) continue;  // EINTR
    char buffer[16 * 1024];
    for (std::size_t i = 0; i < 2; ++i) {
      if (entries[i].revents == 0) continue;
      UniqueFd& fd = i == 0 ? out_fd : err_fd;
      const auto bytes = read(fd.get(), buffer, sizeof buffer);
      if (bytes < 0 && errno == EINTR) continue;
      if (bytes <= 0) {
        fd.reset();
        continue;
      }
      MutexLock lock(mutex);
      (i == 0 ? out : err).append(buffer, static_cast<std::size_t>(bytes));
      changed.notify_all();
    }
    if (entries[2].revents != 0) {
      const auto bytes = write(in_fd.get(), input.data() + sent, std::min<std::size_t>(input.size() - sent, 4096));
      if (bytes > 0) sent += static_cast<std::size_t>(bytes);
      if ((bytes < 0 && errno != EINTR) || sent == input.size()) in_fd.reset();
    }
    if (entries[3].revents != 0 && entries[0].revents == 0 && entries[1].revents == 0) break;
  }
  MutexLock lock(mutex);
  ended = true;
  changed.notify_all();
}

Process::Process(ProcessOptions options) : state_(std::make_unique<State>()) {
  signal(SIGPIPE, SIG_IGN);  // a program that ends before it has read its input is no reason to end the test
  const std::string path = find_in_path(options.command.at(0));
  state_->name = options.name.empty() ? path : options.name;
  auto environment = environment_of(options);
  const auto argv = pointers(options.command);
  const auto envp = pointers(environment);
  Pipe in = make_pipe();
  Pipe out = make_pipe();
  Pipe err = make_pipe();
  Pipe failure = make_pipe();
  Pipe stop = make_pipe();
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) throw SystemError("fork", errno);
  if (pid == 0) {  // other threads' locks may be held for ever: nothing but system calls until exec
    const bool ready = setpgid(0, 0) == 0 && prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == parent &&
                       (options.folder.empty() || chdir(options.folder.c_str()) == 0) &&
                       dup2(in.read_end.get(), 0) == 0 && dup2(out.write_end.get(), 1) == 1 &&
                       dup2(err.write_end.get(), 2) == 2 && signal(SIGPIPE, SIG_DFL) != SIG_ERR;
    if (ready) execve(path.c_str(), argv.data(), envp.data());
    const int error = errno;
    if (write(failure.write_end.get(), &error, sizeof error) != sizeof error) _exit(126);
    _exit(127);
  }
  state_->pid = pid;
  failure.write_end.reset();
  int error = 0;
  if (read(failure.read_end.get(), &error, sizeof error) == sizeof error) {
    waitpid(pid, nullptr, 0);
    throw SystemError(fmt::format("start {}", path), error);
  }
  state_->stop_reader = std::move(stop.write_end);
  state_->reader = std::thread([state = state_.get(), out_fd = std::move(out.read_end),
                                err_fd = std::move(err.read_end), in_fd = std::move(in.write_end),
                                input = std::move(options.input), stopped = std::move(stop.read_end)]() mutable {
    state->read_all(std::move(out_fd), std::move(err_fd), std::move(in_fd), std::move(input), std::move(stopped));
  });
}

Process::Process(Process&&) noexcept = default;

Process::~Process() {
  if (!state_) return;
  if (!state_->reaped) {
    kill(-state_->pid, SIGKILL);
    kill(state_->pid, SIGKILL);
    while (waitpid(state_->pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  state_->stop_reader.reset();
  state_->reader.join();
  if (::testing::Test::HasFailure()) state_->show();
}

pid_t Process::pid() const { return state_->pid; }

bool Process::running() const {
  if (state_->reaped) return false;
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(state_->pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0;
}

void Process::send(int signal) const {
  ASSERT_FALSE(state_->reaped) << state_->name << " has ended already";
  ASSERT_EQ(kill(state_->pid, signal), 0) << errno_text(errno);
}

std::string Process::out() const {
  MutexLock lock(state_->mutex);
  return state_->out;
}

std::string Process::err() const {
  MutexLock lock(state_->mutex);
  return state_->err;
}

bool Process::await_output(std::string_view text, int count, const Deadline& deadline) const {
  {
    MutexLock lock(state_->mutex);
    while (true) {
      if (count_in(state_->out, text) + count_in(state_->err, text) >= count) return true;
      if (state_->ended || deadline.expired()) break;
      state_->changed.wait_until(state_->mutex, deadline);
    }
  }
  fmt::print(stderr, "---- '{}' did not come {} times, {}\n", text, count, deadline.progress());
  state_->show();
  return false;
}

Result Process::wait(const Deadline& deadline) {
  {
    MutexLock lock(state_->mutex);
    while (!state_->ended && !deadline.expired()) state_->changed.wait_until(state_->mutex, deadline);
  }
  siginfo_t info{};
  const bool ended = wait_until(
      [&] { return waitid(P_PID, static_cast<id_t>(state_->pid), &info, WEXITED | WNOHANG) == 0 && info.si_pid != 0; },
      deadline);
  if (!ended) {
    state_->show();
    throw Timeout(fmt::format("{} (pid {}) did not end, {}", state_->name, state_->pid, deadline.progress()));
  }
  state_->reaped = true;
  Result result;
  result.signal = info.si_code == CLD_EXITED ? 0 : info.si_status;
  result.exit_code = info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
  result.out = out();
  result.err = err();
  return result;
}

Result run_process(ProcessOptions options, const Deadline& deadline) {
  return Process(std::move(options)).wait(deadline);
}

std::string job() {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  return fmt::format("{}-{}", getpid(),
                     test == nullptr ? "none" : fmt::format("{}.{}", test->test_suite_name(), test->name()));
}

bool has_program(std::string_view name) { return find_in_path(std::string(name)).find('/') != std::string::npos; }

}  // namespace lockstep::testing
