// SPDX-License-Identifier: Apache-2.0
#include "launcher/signals.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>

#include "lockstep/base/error.h"

namespace lockstep::launcher {

Signals::Signals() {
  // Inherited as ignored it would make the kernel throw away how the ranks ended.
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

SignalsLetThrough::SignalsLetThrough(const Signals& signals) {
  pthread_sigmask(SIG_SETMASK, &signals.original_mask(), &blocked_);
}

SignalsLetThrough::~SignalsLetThrough() { pthread_sigmask(SIG_SETMASK, &blocked_, nullptr); }

}  // namespace lockstep::launcher
