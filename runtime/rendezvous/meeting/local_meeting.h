// SPDX-License-Identifier: Apache-2.0
// On one host, rank 0 tells the others where the store is over a Unix socket whose name they all can work out.
//
// The name is in the abstract namespace, so it is gone with rank 0's process. Any process may connect to it or take it
// first: both sides check that the other one runs as the same user.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <thread>

#include "lockstep/base/deadline.h"
#include "runtime/base/event_fd.h"
#include "runtime/base/unique_fd.h"

namespace lockstep::rendezvous {

// "lockstep/UID/FAMILY/JOB/ATTEMPT", with a hash in place of a job's name that is too long.
std::string local_meeting_name(unsigned uid, std::string_view family, std::string_view job, int attempt);

// Rank 0's side. Answers from a thread of its own until it is destroyed.
class LocalMeeting {
 public:
  // Throws SystemError with EADDRINUSE if another process has the name.
  LocalMeeting(const std::string& name, std::string answer);
  ~LocalMeeting();
  LocalMeeting(const LocalMeeting&) = delete;
  LocalMeeting& operator=(const LocalMeeting&) = delete;

 private:
  void serve();
  void answer_one();
  bool stopped_within(std::chrono::milliseconds pause) const;

  std::string name_;
  std::string answer_;
  UniqueFd listener_;
  EventFd stop_;
  std::thread thread_;
};

// The other ranks' side: rank 0's answer. Waits until rank 0 is there. Timeout; Mismatch if another user has the name.
std::string ask_local_meeting(const std::string& name, const Deadline& deadline);

}  // namespace lockstep::rendezvous
