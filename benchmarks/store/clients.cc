// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/store/clients.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <exception>
#include <stdexcept>

#include "lockstep/base/error.h"

namespace lockstep::bench {
namespace {

constexpr pid_t kGone = -1;

void make_pipe(UniqueFd (&ends)[2]) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) throw SystemError("pipe2", errno);
  ends[0].reset(fds[0]);
  ends[1].reset(fds[1]);
}

// True when a byte came, false at the end of the pipe.
bool read_byte(int fd) {
  char byte = 0;
  ssize_t got = 0;
  do got = read(fd, &byte, 1);
  while (got < 0 && errno == EINTR);
  if (got < 0) throw SystemError("read from a pipe", errno);
  return got == 1;
}

}  // namespace

double now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

Clients::Clients(int count, std::size_t results_each, const Body& body) : results_each_(results_each) {
  shared_bytes_ = (1 + static_cast<std::size_t>(count) * results_each) * sizeof(double);
  void* memory = mmap(nullptr, shared_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw SystemError("mmap", errno);
  shared_ = static_cast<double*>(memory);
  for (auto* ends : {&started_, &ready_, &gate_}) make_pipe(*ends);
  for (int index = 0; index < count; ++index) {
    const pid_t pid = fork();
    if (pid < 0) throw SystemError("fork", errno);
    if (pid == 0) run(index, body);
    pids_.push_back(pid);
  }
  ready_[1].reset();
}

Clients::~Clients() {
  for (const pid_t pid : pids_) {
    if (pid != kGone) kill(pid, SIGKILL);
  }
  for (const pid_t pid : pids_) {
    if (pid != kGone) waitpid(pid, nullptr, 0);
  }
  munmap(shared_, shared_bytes_);
}

void Clients::run(int index, const Body& body) {
  try {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pids_.clear();  // not ours
    started_[1].reset();
    gate_[1].reset();
    read_byte(started_[0].get());
    const auto gate = [this] {
      if (write(ready_[1].get(), "r", 1) != 1) throw SystemError("write to a pipe", errno);
      read_byte(gate_[0].get());
    };
    body(index, {"127.0.0.1", static_cast<std::uint16_t>(*shared_)}, gate,
         std::span(shared_ + 1 + static_cast<std::size_t>(index) * results_each_, results_each_));
    _exit(0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "client %d: %s\n", index, error.what());
    _exit(1);
  }
}

void Clients::start(const net::HostPort& server) {
  *shared_ = server.port;
  started_[1].reset();
}

void Clients::await_ready() {
  for (std::size_t i = 0; i < pids_.size(); ++i) {
    if (!read_byte(ready_[0].get())) throw std::runtime_error("a client has failed before it was ready");
  }
}

void Clients::go() { gate_[1].reset(); }

void Clients::kill_one(int index) {
  pid_t& pid = pids_[static_cast<std::size_t>(index)];
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  pid = kGone;
}

std::vector<std::vector<double>> Clients::finish() {
  bool failed = false;
  for (const pid_t pid : pids_) {
    int status = 0;
    if (pid == kGone) continue;
    if (waitpid(pid, &status, 0) != pid || status != 0) failed = true;
  }
  std::vector<std::vector<double>> rows;
  for (std::size_t i = 0; i < pids_.size(); ++i) {
    const double* row = shared_ + 1 + i * results_each_;
    rows.emplace_back(row, row + results_each_);
  }
  pids_.clear();
  if (failed) throw std::runtime_error("a client has failed");
  return rows;
}

}  // namespace lockstep::bench
