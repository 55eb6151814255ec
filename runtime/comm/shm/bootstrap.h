// SPDX-License-Identifier: Apache-2.0
// How the ranks of a group come to share a control block, and later arenas.
//
// Rank 0 makes each memfd and hands its descriptor to the others over an abstract Unix socket, whose name, drawn by
// chance, it publishes in the group's store. Both sides check that the other runs as the same user. Whether shared
// memory can be had is found out by trying: every rank tells all what came of it, so all succeed or all fail with the
// same reasons. Then each gets the bells of all (comm/progress.h). The connections stay open, for arenas.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "runtime/base/unique_fd.h"
#include "runtime/comm/backend.h"
#include "runtime/comm/shm/memory.h"
#include "runtime/comm/shm/session.h"

namespace lockstep::shm {

// The descriptor lines between rank 0 and the others.
class DescriptorChannels {
 public:
  DescriptorChannels() = default;
  // On rank 0: by rank, its own empty. On another rank: one, to rank 0.
  explicit DescriptorChannels(std::vector<UniqueFd> sockets) : sockets_(std::move(sockets)) {}

  // Rank 0: gives everybody a duplicate of `fd`, or word that there is none if it is -1. A line that fails keeps no
  // other from it; the first failure is thrown at the end.
  void send_to_all(int fd, const Deadline& deadline);
  // The others: the descriptor that rank 0 hands out; empty if it hands out none. `check` is called every 50 ms until
  // it is there, and ends the wait by throwing.
  UniqueFd receive(const Deadline& deadline, const std::function<void()>& check = {});

 private:
  std::vector<UniqueFd> sockets_;
};

struct SharedSetup {
  std::shared_ptr<Mapping> control;  // formatted; every rank holds its life lock and has described itself
  DescriptorChannels channels;
  Bells bells;
  std::vector<UniqueFd> files;  // by rank: what it brought to Beside::file; empty if nobody did
};

// Memory and a descriptor for another user, on every rank or on none.
struct Beside {
  std::size_t bytes = 0;  // of memory behind the control block, of zeros; the same on every rank
  int file = -1;          // a descriptor of this rank's that every rank gets
};

// Collective. Throws BackendUnavailable with every rank's reasons, Timeout with the ranks that did not come.
SharedSetup set_up(const GroupContext& context, const Deadline& deadline, const Beside& beside = {});
// Where the bytes beside begin.
std::byte* memory_beside(const SharedSetup& setup, std::size_t ranks);

}  // namespace lockstep::shm
