// SPDX-License-Identifier: Apache-2.0
#include "launcher/watch/exit_status.h"

#include <fmt/format.h>

#include <csignal>

#include "runtime/base/exit_code.h"
#include "runtime/base/signal_name.h"

namespace lockstep::launcher {

bool ExitStatus::is_consequence() const { return !by_signal && value == kExitPeerLost; }

std::string ExitStatus::describe() const {
  if (!by_signal) return fmt::format("exited with code {}", value);
  return fmt::format("was killed by signal {} ({}){}", value, signal_name(value), dumped_core ? ", core dumped" : "");
}

std::string ExitStatus::describe_as_consequence() const {
  return is_consequence() ? fmt::format("{}: it lost another rank", describe()) : describe();
}

std::string ExitStatus::hint() const {
  if (!by_signal) {
    if (value == kExitPeerLost) return "75 says that it lost another rank; its own line above says which and why";
    if (value == 127) return "127 is what a shell says for a command that was not found";
    if (value == 126) return "126 is what a shell says for a command that can't be executed";
    return {};
  }
  switch (value) {
    case SIGKILL:
      return "if nobody killed it, the kernel may have been out of memory: dmesg | grep -i 'killed process'";
    case SIGSEGV:
    case SIGBUS:
    case SIGILL:
    case SIGFPE: return "run the program alone under gdb, or build it with -fsanitize=address, to see where";
    default: return {};
  }
}

}  // namespace lockstep::launcher
