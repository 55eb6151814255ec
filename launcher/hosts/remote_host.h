// SPDX-License-Identifier: Apache-2.0
// The remote shell that runs `lockstep agent` on one host: a local process with its input and its two outputs.
#pragma once

#include <poll.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/output/console.h"
#include "launcher/output/line_splitter.h"
#include "launcher/process/exit_status.h"
#include "launcher/process/spawn.h"

namespace lockstep::launcher {

// Main thread only. No function here waits.
class RemoteHost {
 public:
  // Called for each line. Returns true if the agent's line is a message to this process, which is not shown.
  using OnLine = std::function<bool(std::string_view line)>;

  // Starts `command`, which dies with this process. Throws ExecError, SystemError.
  RemoteHost(std::string name, std::vector<std::string> command, const std::vector<std::string>& environment,
             const sigset_t& signal_mask);

  const std::string& name() const { return name_; }
  // Queues a text for the shell's standard input.
  void send(std::string_view text) { input_ += text; }
  void close_input();
  // Kills the remote shell. Its programs on the remote host see the end of their standard input, when the connection
  // tells.
  void kill();
  // Adds the descriptors that it waits for, for poll(2); if `reads`, its outputs too.
  void add_to(std::vector<pollfd>& entries, bool reads) const;
  // Call it after poll(2): writes, reads and reaps as far as possible. Lines are shown on the console, except for those
  // that `on_line` takes. Returns true if there was anything to read.
  bool move(Console& console, bool reads, const OnLine& on_line);

  bool running() const { return !ending_ || out_ || err_; }
  // Exit status of the remote shell, which is the agent's exit code if the agent was started; nullopt while it runs.
  const std::optional<ExitStatus>& ending() const { return ending_; }

 private:
  void write_input();
  // Returns true if bytes arrived.
  bool read(Stream stream, UniqueFd& fd, LineSplitter& lines, Console& console, const OnLine& on_line);

  std::string name_;
  Spawned process_;
  UniqueFd in_;
  UniqueFd out_;
  UniqueFd err_;
  std::string input_;  // not yet written
  bool ends_input_ = false;
  LineSplitter out_lines_;
  LineSplitter err_lines_;
  std::optional<ExitStatus> ending_;
};

}  // namespace lockstep::launcher
