// SPDX-License-Identifier: Apache-2.0
// `lockstep doctor -H`: a check whether a job could start on the hosts that a user names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/doctor/finding.h"
#include "launcher/flags/command_line.h"
#include "lockstep/base/environment.h"

namespace lockstep::launcher::doctor {

// Starts a trial on each host through the remote shell, and has each of them connect to the others. The output of the
// remote shells goes to stderr. Waits for each host at most DoctorOptions::probe_timeout, twice. Throws
// InvalidArgument, SystemError. Call it while the process has one thread.
Findings examine_hosts(const DoctorOptions& options, const Environment& environment);

// A host that the user named, and what the trial on it has said (host_trial.h).
struct TriedHost {
  std::string name = {};     // as the user wrote it
  std::string command = {};  // the command that starts the trial on it
  // How the command ended, if it did before the trial was done: "exited with code 255".
  std::string ending = {};
  std::string build = {};    // base/plugin.h
  std::string address = {};  // at which the other hosts would look for its ranks; empty: it has none
  int port = 0;              // at which the trial listens; 0: it has said nothing yet
  bool is_done = false;      // it has tried the others
  Findings findings = {};
};

// Reads a line of a trial. Returns false for another one.
bool read_trial(std::string_view line, TriedHost& host);
// Returns the findings of all hosts, and a problem for each that did not answer, came to no end, or has another build
// than the first that answered. `limit` is the time that a host had, "60 s". Pure.
Findings findings_of(const std::vector<TriedHost>& hosts, const std::string& limit);

}  // namespace lockstep::launcher::doctor
