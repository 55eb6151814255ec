// Are the replicas still in lockstep? Compares 64-bit hashes of the parameters' bytes over the ranks.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "runtime/comm/process_group.h"

namespace lockstep {

// A parameter, or any other state that must be equal on all ranks. What is on a device is copied to the host, as it is
// behind what the stream has that comes with it, and the call waits for that.
struct NamedBuffer {
  std::string name;
  BufferView value;
};

// A hash of names, dtypes, sizes and bytes. Equal bits give equal hashes on every machine; -0 and 0 differ, as do two
// NaNs of different bits.
// `stream` is for buffers on its device; others go by their device's default stream. Throws DeviceError, and Timeout
// after five minutes without them.
std::uint64_t hash_replica(std::span<const NamedBuffer> buffers, StreamView stream = {});

// Collective and blocking. Returns the hash that all ranks share, or throws the same Mismatch on every rank: which
// ranks differ from the others, and the first parameter in which they do. 16 bytes per rank travel if all are equal.
// The stream is the group's.
std::uint64_t check_replicas(ProcessGroup& group, std::span<const NamedBuffer> buffers);

}  // namespace lockstep
