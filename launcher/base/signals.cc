// SPDX-License-Identifier: Apache-2.0
#include "launcher/base/signals.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "runtime/base/io.h"
#include "runtime/base/signal_name.h"

namespace lockstep::launcher {

bool asks_to_end(int signal) { return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT; }

std::string stopped_between_starts(int signal, int exit_code, std::string_view where) {
  return fmt::format("stopped by {} between two starts{}; exit code {}", signal_name(signal), where, exit_code);
}

Signals::Signals() {
  // An inherited SIG_IGN would make the kernel discard the exit statuses of the ranks.
  if (signal(SIGCHLD, SIG_DFL) == SIG_ERR) throw SystemError("signal SIGCHLD", errno);
  sigset_t wanted;
  sigemptyset(&wanted);
  sigaddset(&wanted, SIGCHLD);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP}) {
    struct sigaction now {};
    if (sigaction(number, nullptr, &now) != 0) throw SystemError("sigaction", errno);
    if (now.sa_handler != SIG_IGN) sigaddset(&wanted, number);
  }
  if (const int error = pthread_sigmask(SIG_BLOCK, &wanted, &original_mask_); error != 0) {
    throw SystemError("pthread_sigmask", error);
  }
  // A rank that inherited a blocked signal would not receive it when the launcher passes it on.
  for (int number = 1; number < NSIG; ++number) {
    if (sigismember(&wanted, number) == 1) sigdelset(&original_mask_, number);
  }
  fd_.reset(signalfd(-1, &wanted, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!fd_) throw SystemError("signalfd", errno);
}

std::vector<int> Signals::take() {
  std::vector<int> taken;
  while (true) {
    signalfd_siginfo info;
    const auto bytes = read(fd_.get(), &info, sizeof info);
    if (bytes == sizeof info) {
      taken.push_back(static_cast<int>(info.ssi_signo));
    } else if (bytes < 0 && errno == EAGAIN) {
      return taken;
    } else if (bytes >= 0 || errno != EINTR) {
      throw SystemError("read signalfd", bytes < 0 ? errno : EIO);
    }
  }
}

std::optional<int> Signals::take_end() {
  for (const int signal : take()) {
    if (asks_to_end(signal)) return signal;
  }
  return std::nullopt;
}

std::optional<int> Signals::pause(std::chrono::milliseconds time) {
  const auto deadline = Deadline::after(time);
  do {
    if (const auto signal = take_end()) return signal;
    pollfd entry{fd_.get(), POLLIN, 0};
    uninterrupted([&] { return poll(&entry, 1, deadline.poll_timeout_ms()); });
  } while (!deadline.expired());
  return std::nullopt;
}

SignalsLetThrough::SignalsLetThrough(const Signals& signals) {
  pthread_sigmask(SIG_SETMASK, &signals.original_mask(), &blocked_);
}

SignalsLetThrough::~SignalsLetThrough() { pthread_sigmask(SIG_SETMASK, &blocked_, nullptr); }

}  // namespace lockstep::launcher
