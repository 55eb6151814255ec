// SPDX-License-Identifier: Apache-2.0
// The results of the trials on several hosts, host by host and pair by pair. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/doctor/finding.h"
#include "launcher/doctor/trial_lines.h"

namespace lockstep::launcher::doctor {

// A host that the user named, in that order.
struct TriedHost {
  std::string name = {};                // as it was named
  std::string command = {};             // that was to start the trial there
  std::optional<TrialHost> facts = {};  // nothing: it did not tell any
  std::string ending = {};              // of the command, before it told that all was done: "exited with code 255"
  bool is_done = false;                 // all of its results are there
  std::vector<TrialResult> results = {};
};

// The hosts that answered, as peers of host `node`: each other one by its address, the first also by `endpoint`'s host.
std::vector<TrialPeer> peers_of(const std::vector<TriedHost>& hosts, int node, const std::string& endpoint);

// A finding for each host, one for its connections to the others, and a problem for each pair that has one. `limit`:
// how long a host could take to answer, "60 s".
Findings pair_findings(const std::vector<TriedHost>& hosts, const std::string& limit);

}  // namespace lockstep::launcher::doctor
