// SPDX-License-Identifier: Apache-2.0
// Checks that the replicas are equal, by comparing 64-bit hashes of the parameters' bytes over the ranks.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

// NamedBuffer is a parameter, or other state that must be equal on all ranks. To hash memory on a device, the functions
// of this header queue a copy to the host in a stream of the device, and wait for the copy.
struct NamedBuffer {
  std::string name;
  BufferView value;
};

// Returns a hash of the buffers' names, dtypes, sizes and bytes. Buffers with equal bits have equal hashes on every
// machine. The values -0 and 0 have different hashes, and so do two NaNs with different bits. Copies from the device of
// `stream` run in `stream`; copies from another device run in the default stream of the other device. Throws
// DeviceError if a copy from a device fails, and Timeout if a copy takes more than five minutes.
LOCKSTEP_API std::uint64_t hash_replica(std::span<const NamedBuffer> buffers, StreamView stream = {});

// ReplicaComparison is the result of comparing the ranks' replicas.
struct ReplicaComparison {
  std::uint64_t hash = 0;  // this rank's hash_replica()
  // The ranks whose replicas differ from the replicas of most ranks, or from rank 0's replica if there is no majority.
  std::vector<int> ranks = {};
  std::string parameter = {};  // the first parameter that differs
  // A description of the difference, such as "2 of 3 parameters differ, the first is parameter 1, 'b': rank 2 differs
  // from the others".
  std::string difference = {};

  bool are_equal() const { return ranks.empty(); }
};

// Collective and blocking: compares the ranks' replicas, and sends 16 bytes per rank if all replicas are equal. Copies
// from a device run in the group's stream. Throws Mismatch if the ranks pass different numbers of buffers.
LOCKSTEP_API ReplicaComparison compare_replicas(ProcessGroup& group, std::span<const NamedBuffer> buffers);
// Returns the message of the Mismatch error that reports `comparison`. `when` is empty, or a clause such as "; they
// came apart ..." that tells when the replicas began to differ.
LOCKSTEP_API std::string describe_divergence(const ReplicaComparison& comparison, std::string_view when = {});

// Returns the hash that all ranks share. If the replicas differ, every rank throws the same Mismatch; the message names
// the ranks whose replicas differ and the first parameter that differs. The call is collective and blocking.
LOCKSTEP_API std::uint64_t check_replicas(ProcessGroup& group, std::span<const NamedBuffer> buffers);

}  // namespace lockstep
