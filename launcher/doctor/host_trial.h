// SPDX-License-Identifier: Apache-2.0
// One host's part of `lockstep doctor -H`: `lockstep agent` on that host examines it, serves a store, and connects to
// the others' stores.
#pragma once

#include <string>
#include <string_view>

#include "launcher/doctor/finding.h"
#include "launcher/hosts/agent_input.h"

namespace lockstep::launcher::doctor {

// The lines of a trial, on its stderr: this and a TrialAnswer, escaped. The first has all fields; the second, after the
// peers are tried, only findings.
inline constexpr std::string_view kTrialLine = "lockstep-doctor ";
struct TrialAnswer {
  std::string build = {};    // base/plugin.h
  std::string address = {};  // at which the other hosts would look for its ranks; empty: it has none
  int port = 0;              // at which it listens
  Findings findings = {};

  static constexpr auto kFields = [](auto& answer, auto& fields) {
    fields("build", answer.build);
    fields("address", answer.address);
    fields("port", answer.port, 0, 65535);
    fields.list("findings", answer.findings, Finding::kFields);
  };
};

// The line to a trial, on its stdin: this and records of all peers, escaped. The trial ends when its stdin ends.
inline constexpr std::string_view kPeersLine = "peers ";
struct Peer {
  int node = 0;
  std::string name = {};  // as the user wrote it
  std::string address = {};

  static constexpr auto kFields = [](auto& peer, auto& fields) {
    fields("node", peer.node, 0);
    fields("name", peer.name);
    fields("address", peer.address);
  };
};

// Returns the exit code. Main thread.
int run_host_trial(AgentInput& input);

}  // namespace lockstep::launcher::doctor
