// SPDX-License-Identifier: Apache-2.0
// Several hosts on one machine: network namespaces joined by a bridge, each with a host name and a boot id of its own.
//
// Nothing of it has a name outside of the test: the namespaces are those of child processes that end with it, however
// it ends, and with the last process in them the kernel takes links, bridge and mounts away. So tests may run beside
// each other, and a kill -9 leaves nothing.
//
// Threads: the test's main thread, with which the children die.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace lockstep::testing {

class NetworkHosts {
 public:
  // Why they can't be made here, as a sentence for GTEST_SKIP(); empty if they can. Found out by making one.
  static std::string why_not();

  // At most 100. Throws SystemError, or lockstep::Error with what `ip` said.
  explicit NetworkHosts(int count);
  ~NetworkHosts();
  NetworkHosts(const NetworkHosts&) = delete;
  NetworkHosts& operator=(const NetworkHosts&) = delete;

  int size() const { return static_cast<int>(anchors_.size()) - 1; }
  // "host0".
  static std::string name(int host);
  // Where it is reached, "10.77.0.10", and a second address of the same host, "10.78.0.10".
  static std::string address(int host);
  static std::string second_address(int host);
  // `program` with its arguments, to be run on the host: as ProcessOptions::command. The pid is the program's.
  std::vector<std::string> command(int host, std::vector<std::string> program) const;

  // Takes the host's cable out: nothing goes in or out, and nobody is told. And puts it in again.
  void cut(int host) { set_link(host, "down"); }
  void mend(int host) { set_link(host, "up"); }

 private:
  // The processes that the namespaces belong to: the bridge's first, then host by host.
  std::vector<pid_t> anchors_;

  void set_link(int host, const std::string& state);
};

}  // namespace lockstep::testing
