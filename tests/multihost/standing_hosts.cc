// SPDX-License-Identifier: Apache-2.0
// Two hosts with a process in one of them, until killed.
#include <cstdio>

#include "tests/support/network_namespaces.h"
#include "tests/support/process.h"

int main() {
  using namespace lockstep;
  using namespace lockstep::testing;
  const NetworkHosts hosts(2);
  Process guest({.command = hosts.command(1, {"sleep", "1000"})});
  std::printf("standing\n");
  std::fflush(stdout);
  return guest.wait(Deadline::never()).exit_code;
}
