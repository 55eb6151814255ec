// SPDX-License-Identifier: Apache-2.0
// The results of the trials on several hosts, host by host and pair by pair. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/doctor/finding.h"
#include "launcher/doctor/trial_lines.h"

namespace lockstep::launcher::doctor {

// A host that the user named. Hosts keep the user's order.
struct TriedHost {
  std::string name = {};                // as the user wrote it
  std::string command = {};             // the command that starts the trial on it
  std::optional<TrialHost> facts = {};  // nullopt: the trial has not sent any
  // how the command ended, if it did before the trial was done: "exited with code 255"
  std::string ending = {};
  bool is_done = false;  // all of its results are there
  std::vector<TrialResult> results = {};
};

// Returns the hosts that answered, as peers of host `node`: each other host by its address, the first also by
// `endpoint`'s host.
std::vector<TrialPeer> peers_of(const std::vector<TriedHost>& hosts, int node, const std::string& endpoint);

// Returns a finding for each host, one for its connections to the others, and a problem for each pair that has one.
// `limit` is the time that a host had to answer, "60 s".
Findings pair_findings(const std::vector<TriedHost>& hosts, const std::string& limit);

}  // namespace lockstep::launcher::doctor
