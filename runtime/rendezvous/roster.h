// Who is in the job: exchanged once, through the store, when the ranks meet.
#pragma once

#include <string>
#include <vector>

namespace lockstep::rendezvous {

struct Member {
  int rank = 0;
  int local_rank = 0;
  int pid = 0;
  std::string host;     // host name, for people
  std::string boot_id;  // equal on two members exactly if they share a kernel

  // "rank 2 (host node7, pid 4711)", for messages.
  std::string describe() const;
};

// Index is the rank.
using Roster = std::vector<Member>;

}  // namespace lockstep::rendezvous
