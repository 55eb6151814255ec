// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/remote_host.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <utility>

#include "launcher/base/system.h"
#include "runtime/base/io.h"
#include "runtime/net/open_files.h"

namespace lockstep::launcher {

RemoteHost::RemoteHost(std::string name, std::vector<std::string> command, const std::vector<std::string>& environment,
                       const sigset_t& signal_mask)
    : name_(std::move(name)) {
  Pipe in = make_pipe();
  Pipe out = make_pipe();
  Pipe err = make_pipe();
  const UniqueFd null = open_file("/dev/null", false);
  SpawnRequest request;
  request.path = command.front();
  request.arguments = std::move(command);
  request.environment = environment;
  request.stdin_fd = in.read_end.get();
  request.stdout_fd = out.write_end.get();
  request.stderr_fd = err.write_end.get();
  request.inherited_fd = null.get();
  request.registration_fd = null.get();
  request.signal_mask = signal_mask;
  request.open_files = net::open_files_limit();
  process_ = spawn(request);
  in_ = std::move(in.write_end);
  out_ = std::move(out.read_end);
  err_ = std::move(err.read_end);
  for (const int fd : {in_.get(), out_.get(), err_.get()}) set_non_blocking(fd);
}

void RemoteHost::close_input() {
  ends_input_ = true;
  if (input_.empty()) in_.reset();
}

void RemoteHost::kill() {
  // The signal also ends the shell's own children, such as the ssh of a script. The shell is not reaped yet, so its
  // number is still its own.
  if (!ending_) ::kill(-process_.pid, SIGKILL);
}

void RemoteHost::add_to(std::vector<pollfd>& entries, bool reads) const {
  if (in_ && !input_.empty()) entries.push_back({in_.get(), POLLOUT, 0});
  if (out_ && reads) entries.push_back({out_.get(), POLLIN, 0});
  if (err_ && reads) entries.push_back({err_.get(), POLLIN, 0});
  if (!ending_) entries.push_back({process_.pidfd.get(), POLLIN, 0});
}

bool RemoteHost::move(Console& console, bool reads, const OnLine& on_line) {
  write_input();
  bool has_read = false;
  if (reads) {
    has_read = read(Stream::out, out_, out_lines_, console, on_line);
    has_read |= read(Stream::err, err_, err_lines_, console, on_line);
  }
  if (!ending_) ending_ = reap(process_.pidfd.get());
  if (!ending_ || !reads) return has_read;
  // Processes that the shell left behind, such as the master of a shared ssh connection, may hold the pipes open
  // indefinitely.
  while (read(Stream::out, out_, out_lines_, console, on_line)) {
  }
  while (read(Stream::err, err_, err_lines_, console, on_line)) {
  }
  out_.reset();
  err_.reset();
  return has_read;
}

void RemoteHost::write_input() {
  if (!in_) return;
  input_.erase(0, write_all(in_.get(), input_));
  if (input_.empty() ? !ends_input_ : errno == EAGAIN) return;
  input_.clear();  // where the shell has ended, its exit status says more
  in_.reset();
}

bool RemoteHost::read(Stream stream, UniqueFd& fd, LineSplitter& lines, Console& console, const OnLine& on_line) {
  if (!fd) return false;
  const auto sink = [&](LineSplitter::Kind, std::string_view line) {
    if (!on_line(line)) console.line_of_host(stream, name_, line);
  };
  char buffer[64 * 1024];
  const auto bytes = uninterrupted([&] { return ::read(fd.get(), buffer, sizeof buffer); });
  if (bytes > 0) {
    lines.feed({buffer, static_cast<std::size_t>(bytes)}, sink);
    return true;
  }
  if (bytes == 0 || errno != EAGAIN) {
    lines.finish(sink);
    fd.reset();
  }
  return false;
}

}  // namespace lockstep::launcher
