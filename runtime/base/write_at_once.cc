// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/write_at_once.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>

#include "runtime/base/io.h"

namespace lockstep {
namespace {

// A write to a pipe without readers sends SIGPIPE to this thread: it is blocked, and taken before it is let in again.
class NoSigpipe {
 public:
  NoSigpipe() noexcept {
    sigemptyset(&sigpipe_);
    sigaddset(&sigpipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &sigpipe_, &before_);
  }
  ~NoSigpipe() {
    const int error = errno;
    const timespec at_once{};
    if (!was_pending_) uninterrupted([&] { return sigtimedwait(&sigpipe_, nullptr, &at_once); });
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = error;
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  sigset_t sigpipe_;
  sigset_t before_;
  bool was_pending_;
};

// Opens the same pipe or terminal once more: O_NONBLOCK belongs to the open file description, and that of `fd` is
// shared with every process that inherited it. Returns -1, with errno, if that fails: no /proc, another user's pipe, no
// descriptor left.
int open_without_waiting(int fd) noexcept {
  std::array<char, 32> path{"/proc/self/fd/"};
  char* digit = path.data() + 14;
  int scale = 1;
  while (fd / scale >= 10) scale *= 10;
  for (; scale > 0; scale /= 10) *digit++ = static_cast<char>('0' + fd / scale % 10);
  return uninterrupted([&] { return ::open(path.data(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC); });
}

bool is_writable(int fd, int milliseconds) noexcept {
  pollfd one{.fd = fd, .events = POLLOUT, .revents = 0};
  const int ready = ::poll(&one, 1, milliseconds);
  if (ready == 0) errno = EAGAIN;
  return ready > 0;
}

// Calls `write(bytes)` until it takes no more.
template <typename Write>
std::size_t write_pieces(std::string_view bytes, Write write) noexcept {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t written = uninterrupted([&] { return write(bytes.substr(done)); });
    if (written <= 0) break;
    done += static_cast<std::size_t>(written);
  }
  return done;
}

// A pipe or terminal that poll(2) calls writable takes a piece of this size, unless another writer fills it in between.
std::size_t write_while_writable(int fd, std::string_view bytes) noexcept {
  return write_pieces(bytes, [&](std::string_view rest) {
    return is_writable(fd, 0) ? ::write(fd, rest.data(), std::min<std::size_t>(rest.size(), PIPE_BUF)) : -1;
  });
}

std::size_t write_to_pipe_or_terminal(int fd, std::string_view bytes, bool is_pipe) noexcept {
  const int own = open_without_waiting(fd);
  if (own < 0 && errno == ENXIO && is_pipe) {  // nobody has it open for reading
    errno = EPIPE;
    return 0;
  }
  if (own < 0) return write_while_writable(fd, bytes);
  const std::size_t done =
      write_pieces(bytes, [&](std::string_view rest) { return ::write(own, rest.data(), rest.size()); });
  const int error = errno;
  ::close(own);
  errno = error;
  return done;
}

}  // namespace

std::size_t write_at_once(int fd, std::string_view bytes) noexcept {
  const NoSigpipe none;
  struct stat status {};
  if (::fstat(fd, &status) != 0) return 0;
  if (S_ISSOCK(status.st_mode)) return write_while_writable(fd, bytes);
  if (S_ISFIFO(status.st_mode) || S_ISCHR(status.st_mode)) {
    return write_to_pipe_or_terminal(fd, bytes, S_ISFIFO(status.st_mode));
  }
  return write_all(fd, bytes);
}

std::size_t write_within(int fd, std::string_view bytes, int milliseconds) noexcept {
  const auto now_ms = [] {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return std::int64_t{time.tv_sec} * 1000 + time.tv_nsec / 1'000'000;
  };
  const std::int64_t end = now_ms() + milliseconds;
  std::size_t done = write_at_once(fd, bytes);
  while (done < bytes.size() && errno == EAGAIN) {
    const std::int64_t left = end - now_ms();
    if (left <= 0 || !is_writable(fd, static_cast<int>(left))) break;
    done += write_at_once(fd, bytes.substr(done));
  }
  return done;
}

}  // namespace lockstep
