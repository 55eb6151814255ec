// SPDX-License-Identifier: Apache-2.0
// The remote shell that runs `lockstep agent` on one host: a process of this host's, its input and its two outputs.
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

// Main thread only. Nothing here waits.
class RemoteHost {
 public:
  // Called for each line; true if the agent said it to this process alone, so that it is not shown.
  using OnLine = std::function<bool(std::string_view line)>;

  // Starts `command`, which dies with this process. Throws ExecError, SystemError.
  RemoteHost(std::string name, std::vector<std::string> command, const std::vector<std::string>& environment,
             const sigset_t& signal_mask);

  const std::string& name() const { return name_; }
  // Goes to its standard input as it takes it.
  void send(std::string_view text) { input_ += text; }
  void close_input();
  // Ends the remote shell; what it has started elsewhere finds its standard input ended, once it is told.
  void kill();
  // Adds the descriptors that it waits for, for poll(2). `reads`: its output too.
  void add_to(std::vector<pollfd>& entries, bool reads) const;
  // After poll(2): writes, reads and reaps what can be. Lines go to the console, but for those that `on_line` takes.
  // True if there was anything to read.
  bool move(Console& console, bool reads, const OnLine& on_line);

  bool running() const { return !ending_ || out_ || err_; }
  // How the remote shell ended: with the agent's exit code, if it has come that far.
  const std::optional<ExitStatus>& ending() const { return ending_; }

 private:
  void write_input();
  // True if something came.
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
