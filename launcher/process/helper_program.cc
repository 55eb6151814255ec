// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/helper_program.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>

#include "launcher/base/system.h"
#include "launcher/process/spawn.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "runtime/net/stream.h"

namespace lockstep::launcher {
namespace {

using namespace std::chrono_literals;

// A killed process that waits for a device is left to the kernel.
constexpr auto kUnkillableLimit = 2s;

// Reads the available bytes, or a part of them: a writer may be faster. Returns false once the stream has ended.
bool drain(const UniqueFd& fd, std::string& text) {
  std::array<char, 16384> buffer;
  for (int i = 0; i < 64; ++i) {
    const auto bytes = read(fd.get(), buffer.data(), buffer.size());
    if (bytes > 0) {
      text.append(buffer.data(), std::min(static_cast<std::size_t>(bytes), kMostOutput - text.size()));
    } else if (bytes < 0 && errno == EINTR) {
      continue;
    } else {
      return bytes < 0 && errno == EAGAIN;
    }
  }
  return true;
}

// The parent's end doesn't block; the program's end does.
Pipe output_pipe() {
  Pipe pipe = make_pipe();
  set_non_blocking(pipe.read_end.get());
  return pipe;
}

}  // namespace

HelperResult run_helper(const std::vector<std::string>& command, const Deadline& deadline, const Guardian* guardian) {
  const UniqueFd null = open_file("/dev/null", false);
  Pipe out = output_pipe();
  Pipe err = output_pipe();
  SpawnRequest request;
  request.path = command.front();
  request.arguments = command;
  const auto inherited = Environment::of_process();
  for (const auto& [name, value] : inherited.variables()) {
    // LOCKSTEP_STORE_SECRET_FILE too: the program may load foreign libraries.
    if (name.starts_with("LOCKSTEP_STORE_SECRET")) continue;
    request.environment.push_back(fmt::format("{}={}", name, value));
  }
  request.stdin_fd = request.inherited_fd = null.get();
  request.registration_fd = guardian == nullptr ? null.get() : guardian->registration_fd();
  request.stdout_fd = out.write_end.get();
  request.stderr_fd = err.write_end.get();
  sigemptyset(&request.signal_mask);  // the program may wait for signals that this process has blocked
  request.open_files = net::open_files_limit();
  const Spawned program = spawn(request);
  out.write_end.reset();
  err.write_end.reset();

  HelperResult result;
  bool out_open = true;
  bool err_open = true;
  while (!result.ending && !deadline.expired()) {
    std::array<pollfd, 3> entries = {{{program.pidfd.get(), POLLIN, 0},
                                      {out_open ? out.read_end.get() : -1, POLLIN, 0},
                                      {err_open ? err.read_end.get() : -1, POLLIN, 0}}};
    if (poll(entries.data(), entries.size(), deadline.poll_timeout_ms()) < 0 && errno != EINTR) {
      throw SystemError("poll", errno);
    }
    const bool ended = entries[0].revents != 0;
    // The program's own children are killed; it is not reaped yet, so the number is still its own.
    if (ended) kill(-program.pid, SIGKILL);
    if (out_open) out_open = drain(out.read_end, result.out);
    if (err_open) err_open = drain(err.read_end, result.err);
    if (ended) result.ending = reap(program.pidfd.get());
  }
  if (!result.ending) {
    kill(-program.pid, SIGKILL);
    if (net::wait_readable(program.pidfd.get(), Deadline::after(kUnkillableLimit))) reap(program.pidfd.get());
  }
  if (guardian != nullptr) guardian->forget(program.pid);  // the number may be reused for another group from now on
  return result;
}

}  // namespace lockstep::launcher
