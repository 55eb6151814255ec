// SPDX-License-Identifier: Apache-2.0
// The words between `lockstep doctor -H` and the trials that it starts on the hosts: lines of a word and JSON. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launcher::doctor {

// A host, as the trial there sees it.
struct TrialHost {
  std::string name = {};                   // host name
  std::string build = {};                  // base/plugin.h
  std::string address = {};                // at which the other hosts would look for its ranks
  std::string why = {};                    // it is that one
  int port = 0;                            // where the trial listens, at every address
  std::string token = {};                  // who connects there reads it
  std::vector<std::string> problems = {};  // that keep ranks from starting there, each with its remedy behind "; "
};

// A host that a trial connects to, by one of its addresses.
struct TrialPeer {
  int node = 0;              // by its place among the hosts named, from 0
  std::string address = {};  // "10.0.0.7:41234", or a name and a port
  std::string token = {};
};

// What came of it.
struct TrialResult {
  enum class Outcome {
    reached,
    unreached,  // no connection
    cut,        // a connection, over which not all came
    stranger,   // somebody else listens there
  };
  int node = 0;  // of the peer
  std::string address = {};
  Outcome outcome = Outcome::reached;
  std::string from = {};  // address that it came from; empty without a connection
  double seconds = 0;
  std::string problem = {};  // empty if it was reached
};

// From a trial, on its stderr: a TrialHost, then a TrialResult for each peer, then that these were all.
inline constexpr std::string_view kHostLine = "lockstep-doctor host ";
inline constexpr std::string_view kResultLine = "lockstep-doctor result ";
inline constexpr std::string_view kDoneLine = "lockstep-doctor done";
// To a trial, on its stdin: a TrialPeer for each address, then that these were all. Its end is the trial's.
inline constexpr std::string_view kPeerLine = "peer ";
inline constexpr std::string_view kTryLine = "try";

// JSON without a line's end.
std::string encode(const TrialHost& host);
std::string encode(const TrialPeer& peer);
std::string encode(const TrialResult& result);
// nullopt if the text is not one of encode().
std::optional<TrialHost> decode_trial_host(std::string_view text);
std::optional<TrialPeer> decode_trial_peer(std::string_view text);
std::optional<TrialResult> decode_trial_result(std::string_view text);

}  // namespace lockstep::launcher::doctor
