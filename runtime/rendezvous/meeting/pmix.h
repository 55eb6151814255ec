// SPDX-License-Identifier: Apache-2.0
// The launcher's PMIx server as a blackboard: one rank puts a line, the others wait for it.
//
// For jobs of mpirun that span several hosts, where nothing else says where rank 0 is. libpmix.so.2 is loaded when
// asked for, so neither the build nor a laptop needs it. MPI is not initialised.
//
// The session stays open until it is destroyed: Open MPI 4.1 can't initialise MPI in a process that has closed its PMIx
// session, and mpirun takes the end of a process with an open one for a failure. That is also why a job on one host
// does not use this (local_meeting.h). Open MPI 5.0 can't initialise MPI beside an open one, and one that is closed and
// opened again hangs now and then: is_any_open() is for those who would.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/owner_process.h"

namespace lockstep::rendezvous {

class PmixSession {
 public:
  // The files to load the library from, the best first: what the loader finds, and copies in the launcher's own
  // folders. Open MPI 5 names those in PMIX_PREFIX for the ranks of mpirun's host, and in OPAL_PREFIX for all if it was
  // moved. Its copy comes last, since it can abort a process that closes its session and opens another one. An older
  // one works, but mpirun prints PMIX ERROR.
  static std::vector<std::string> libraries(const Environment& environment);
  // Loads the first of `libraries` that can be loaded, and connects to the server that the environment names. Throws
  // BackendUnavailable if none can be loaded or the server does not answer within the library's own time limit.
  static std::unique_ptr<PmixSession> open(
      const std::vector<std::string>& libraries = PmixSession::libraries(Environment::of_process()));
  // Disconnects.
  ~PmixSession();
  // Whether this process has a session open.
  static bool is_any_open();
  PmixSession(const PmixSession&) = delete;
  PmixSession& operator=(const PmixSession&) = delete;

  // This process's rank to the server.
  int rank() const;
  // The server's data of this job; nothing for fields that it doesn't know. Timeout if it gives no answer.
  struct Job {
    std::optional<int> size;
    std::optional<int> local_size;  // ranks on this host
    std::optional<int> local_rank;  // this process's among them
  };
  Job job(const Deadline& deadline);
  // Puts `value` where every rank of the job can find it.
  void publish(std::string_view key, std::string_view value);
  // The value that `rank` published or will publish. Timeout.
  std::string lookup(int rank, std::string_view key, const Deadline& deadline);

 private:
  struct Library;
  struct Question;
  explicit PmixSession(std::unique_ptr<Library> library);
  // Null if it is not there, or there was no answer by the deadline.
  Question* ask(std::uint32_t rank, const std::string& key, const Deadline& deadline);

  std::unique_ptr<Library> library_;
  OwnerProcess owner_;                                // whose session it is
  std::vector<std::unique_ptr<Question>> questions_;  // all that were ever asked
};

}  // namespace lockstep::rendezvous
