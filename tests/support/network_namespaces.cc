// SPDX-License-Identifier: Apache-2.0
#include "tests/support/network_namespaces.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "lockstep/base/error.h"
#include "runtime/base/unique_fd.h"
#include "tests/support/process.h"

namespace lockstep::testing {
namespace {

constexpr const char* kBootId = "/proc/sys/kernel/random/boot_id";
// A folder that every system has, hidden for a moment, in the child's own mount namespace.
constexpr const char* kScratch = "/mnt";

// What failed in a child, to be told over a pipe.
struct Failure {
  int error = 0;
  char step[60] = {};
};

// Below: in a child of a program with threads, so system calls alone.

bool write_file(const char* path, const char* text, std::size_t size) {
  const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0444);
  if (fd < 0) return false;
  const bool written = write(fd, text, size) == static_cast<ssize_t>(size);
  return close(fd) == 0 && written;
}

// From here on this process and who joins its mount namespace read `boot_id`.
bool replace_boot_id(const char* path, const char* boot_id, std::size_t size) {
  return mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("tmpfs", kScratch, "tmpfs", 0, "size=64k") == 0 && write_file(path, boot_id, size) &&
         mount(path, kBootId, nullptr, MS_BIND, nullptr) == 0 && umount2(kScratch, MNT_DETACH) == 0;
}

// Starts a process in namespaces of its own that does nothing. An empty name: a network only.
pid_t start_anchor(const std::string& name, const std::string& boot_id) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw SystemError("pipe2", errno);
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  const std::string path = fmt::format("{}/boot_id", kScratch);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) throw SystemError("fork", errno);
  if (pid == 0) {
    const char* step = nullptr;
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) _exit(1);
    if (unshare(CLONE_NEWNET | (name.empty() ? 0 : CLONE_NEWUTS | CLONE_NEWNS)) != 0) {
      step = "unshare (it takes root, or CAP_SYS_ADMIN)";
    } else if (!name.empty() && sethostname(name.data(), name.size()) != 0) {
      step = "sethostname";
    } else if (!name.empty() && !replace_boot_id(path.c_str(), boot_id.data(), boot_id.size())) {
      step = "mount over the boot id";
    }
    Failure failure{.error = step == nullptr ? 0 : errno};
    for (std::size_t i = 0; step != nullptr && step[i] != 0 && i + 1 < sizeof failure.step; ++i) {
      failure.step[i] = step[i];
    }
    if (write(write_end.get(), &failure, sizeof failure) != sizeof failure || step != nullptr) _exit(1);
    for (;;) pause();
  }
  write_end.reset();
  Failure failure;
  const auto bytes = read(read_end.get(), &failure, sizeof failure);
  if (bytes == sizeof failure && failure.error == 0) return pid;
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  throw SystemError(fmt::format("network namespace: {}", failure.step), failure.error);
}

// Runs a batch of `ip` in the network of `anchor`.
void ip(pid_t anchor, const std::string& batch) {
  const auto result = run_process(
      {.command = {"nsenter", "--target", std::to_string(anchor), "--net", "ip", "-batch", "-"}, .input = batch});
  if (result.exit_code != 0) {
    throw Error(fmt::format("network namespace: ip ended with {}: {}", result.exit_code, result.err));
  }
}

void end_anchor(pid_t pid) {
  kill(pid, SIGKILL);
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace

std::string NetworkHosts::why_not() {
  for (const auto* program : {"ip", "nsenter"}) {
    if (!has_program(program)) return fmt::format("'{}' is not installed (iproute2, util-linux)", program);
  }
  try {
    const NetworkHosts trial(1);
    return {};
  } catch (const Error& error) {
    return fmt::format("network namespaces can't be made here: {}", error.what());
  }
}

std::string NetworkHosts::name(int host) { return fmt::format("host{}", host); }
std::string NetworkHosts::address(int host) { return fmt::format("10.77.0.{}", 10 + host); }
std::string NetworkHosts::second_address(int host) { return fmt::format("10.78.0.{}", 10 + host); }

NetworkHosts::NetworkHosts(int count) {
  try {
    anchors_.push_back(start_anchor("", ""));
    for (int host = 0; host < count; ++host) {
      anchors_.push_back(start_anchor(name(host), fmt::format("00000000-0000-0000-0000-{:012}\n", host)));
    }
    std::string batch = "link add br0 type bridge\nlink set br0 up\n";
    for (int host = 0; host < count; ++host) {
      batch += fmt::format("link add v{0} type veth peer name eth0 netns {1}\nlink set v{0} master br0 up\n", host,
                           anchors_[static_cast<std::size_t>(host) + 1]);
    }
    ip(anchors_.front(), batch);
    for (int host = 0; host < count; ++host) {
      ip(anchors_[static_cast<std::size_t>(host) + 1],
         fmt::format("link set lo up\naddr add {}/24 dev eth0\naddr add {}/24 dev eth0\nlink set eth0 up\n",
                     address(host), second_address(host)));
    }
  } catch (...) {
    for (const pid_t anchor : anchors_) end_anchor(anchor);
    throw;
  }
}

NetworkHosts::~NetworkHosts() {
  for (const pid_t anchor : anchors_) end_anchor(anchor);
}

std::vector<std::string> NetworkHosts::command(int host, std::vector<std::string> program) const {
  const auto anchor = std::to_string(anchors_.at(static_cast<std::size_t>(host) + 1));
  std::vector<std::string> result = {"nsenter", "--target", anchor, "--net", "--uts", "--mount", "--"};
  result.insert(result.end(), program.begin(), program.end());
  return result;
}

void NetworkHosts::set_link(int host, const std::string& state) {
  ip(anchors_.front(), fmt::format("link set v{} {}\n", host, state));
}

}  // namespace lockstep::testing
