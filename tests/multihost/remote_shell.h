// SPDX-License-Identifier: Apache-2.0
// A script that enters hosts as ssh does: "SCRIPT HOST COMMAND ...", by a host's name or address.
#pragma once

#include <string>

#include "tests/support/network_namespaces.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing {

// Writes it. It does `first`, and then `then`, in which $enter enters the host and "$@" is the command.
inline std::string write_remote_shell(const TemporaryFolder& folder, const NetworkHosts& hosts, const std::string& then,
                                      const std::string& first = "") {
  std::string script = "#!/bin/sh\n" + first + "\nhost=$1\nshift\ncase $host in\n";
  for (int host = 0; host < hosts.size(); ++host) {
    script += NetworkHosts::name(host) + "|" + NetworkHosts::address(host) + ") enter='";
    for (const std::string& word : hosts.command(host, {})) script += word + " ";
    script += "' ;;\n";
  }
  script += "*) echo \"no route to $host\" >&2; exit 255 ;;\nesac\n" + then + "\n";
  return folder.write("shell", script, 0700);
}

}  // namespace lockstep::testing
