// SPDX-License-Identifier: Apache-2.0
// The protocol between `lockstep doctor -H` and the trials that it starts on the hosts: lines of a word and JSON. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launcher::doctor {

// A host as the trial on it sees it.
struct TrialHost {
  std::string name = {};                   // host name
  std::string build = {};                  // base/plugin.h
  std::string address = {};                // the address at which the other hosts would look for its ranks
  std::string why = {};                    // the reason for that address
  int port = 0;                            // port on which the trial listens, at every address
  std::string token = {};                  // the bytes that a client of that port receives first
  std::vector<std::string> problems = {};  // reasons why ranks can't start there, each with its remedy behind "; "
};

// A host to which a trial connects, by one of its addresses.
struct TrialPeer {
  int node = 0;              // index among the named hosts, from 0
  std::string address = {};  // "10.0.0.7:41234", or a name and a port
  std::string token = {};
};

// The result of one connection.
struct TrialResult {
  enum class Outcome {
    reached,
    unreached,  // no connection
    cut,        // connected, but not all bytes arrived
    stranger,   // another program listens there
  };
  int node = 0;  // index of the peer
  std::string address = {};
  Outcome outcome = Outcome::reached;
  std::string from = {};  // local address of the connection; empty if there was none
  double seconds = 0;
  std::string problem = {};  // empty if the peer was reached
};

// Lines of a trial, on its stderr: a TrialHost, then a TrialResult for each peer, then the end of the results.
inline constexpr std::string_view kHostLine = "lockstep-doctor host ";
inline constexpr std::string_view kResultLine = "lockstep-doctor result ";
inline constexpr std::string_view kDoneLine = "lockstep-doctor done";
// Lines to a trial, on its stdin: a TrialPeer for each address, then the end of the peers. The trial ends when its
// stdin ends.
inline constexpr std::string_view kPeerLine = "peer ";
inline constexpr std::string_view kTryLine = "try";

// Returns JSON without a newline.
std::string encode(const TrialHost& host);
std::string encode(const TrialPeer& peer);
std::string encode(const TrialResult& result);
// Returns nullopt if the text was not made by encode().
std::optional<TrialHost> decode_trial_host(std::string_view text);
std::optional<TrialPeer> decode_trial_peer(std::string_view text);
std::optional<TrialResult> decode_trial_result(std::string_view text);

}  // namespace lockstep::launcher::doctor
