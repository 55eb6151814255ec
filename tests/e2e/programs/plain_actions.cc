// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/programs/plain_actions.h"

#include <dirent.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

namespace lockstep::e2e {
namespace {

void say(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

void on_signal(int number) {
  char text[] = "caught 00\n";
  text[7] = static_cast<char>('0' + number / 10);
  text[8] = static_cast<char>('0' + number % 10);
  if (write(STDOUT_FILENO, text, sizeof text - 1) < 0) _exit(99);
}

void print_descriptors() {
  DIR* folder = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(folder)) {
    const int fd = std::atoi(entry->d_name);
    if (entry->d_name[0] != '.' && fd != dirfd(folder)) say("fd " + std::to_string(fd) + "\n");
  }
  closedir(folder);
}

// A child that outlives this program and holds its output.
void leave_a_child(bool own_session) {
  if (fork() != 0) return;
  prctl(PR_SET_PDEATHSIG, 0);
  if (own_session) setsid();
  say("child " + std::to_string(getpid()) + "\n");
  while (true) pause();
}

// A child that outlives this program and fills its output faster than anybody reads.
void leave_a_flooding_child() {
  int ends[2];
  if (pipe(ends) != 0 || fork() != 0) {
    char byte = 0;
    close(ends[1]);
    if (read(ends[0], &byte, 1) != 1) _exit(99);  // it has begun
    close(ends[0]);
    return;
  }
  prctl(PR_SET_PDEATHSIG, 0);
  std::string lines;
  while (lines.size() < 64 * 1024) lines += "y\n";
  for (bool told = false; write(STDOUT_FILENO, lines.data(), lines.size()) > 0; told = true) {
    if (!told && write(ends[1], "y", 1) != 1) _exit(99);
  }
  _exit(0);
}

}  // namespace

bool perform_plain(const Action& action) {
  const auto& [name, value] = action;
  const int number = std::atoi(value.c_str());
  if (name == "print") {
    say(value + "\n");
  } else if (name == "eprint") {
    std::fprintf(stderr, "%s\n", value.c_str());
  } else if (name == "buffered") {
    std::printf("%s\n", value.c_str());
  } else if (name == "partial") {
    say(value);
  } else if (name == "ready") {
    say("ready\n");
  } else if (name == "flood") {
    for (int i = 0; i < number; ++i) std::printf("line %d of rank %d\n", i, own_rank());
    std::fflush(stdout);
  } else if (name == "env") {
    const char* text = std::getenv(value.c_str());
    say(value + "=" + (text == nullptr ? "(unset)" : text) + "\n");
  } else if (name == "stdin") {
    char line[256];
    while (std::fgets(line, sizeof line, stdin) != nullptr) say(std::string("read ") + line);
    say("stdin ended\n");
  } else if (name == "descriptors") {
    print_descriptors();
  } else if (name == "signals") {
    sigset_t blocked;
    sigprocmask(SIG_BLOCK, nullptr, &blocked);
    for (int i = 1; i < 32; ++i) {
      if (sigismember(&blocked, i) == 1) say("blocked " + std::to_string(i) + "\n");
      if (i != SIGKILL && i != SIGSTOP && std::signal(i, SIG_DFL) == SIG_IGN)
        say("ignored " + std::to_string(i) + "\n");
    }
  } else if (name == "parent") {
    say("parent " + std::to_string(getppid()) + " group " + (getpgrp() == getpid() ? "own" : "shared") + "\n");
  } else if (name == "ignore") {
    std::signal(number, SIG_IGN);
  } else if (name == "catch") {
    struct sigaction handler {};
    handler.sa_handler = on_signal;
    handler.sa_flags = SA_RESTART;
    sigaction(number, &handler, nullptr);
  } else if (name == "wait-signal") {
    wait_signal(value);
  } else if (name == "child") {
    leave_a_child(false);
  } else if (name == "child-session") {
    leave_a_child(true);
  } else if (name == "child-flood") {
    leave_a_flooding_child();
  } else if (name == "throw") {
    throw std::runtime_error(value);
  } else if (name == "raise") {
    std::raise(number);
  } else if (name == "exit") {
    std::exit(number);
  } else if (name == "exit-now") {
    _exit(number);
  } else if (name == "hang") {
    while (true) pause();
  } else {
    return false;
  }
  return true;
}

}  // namespace lockstep::e2e
