// SPDX-License-Identifier: Apache-2.0
// What a launched NCCL operation does when its turn in the stream comes: over the ranks' slots, or their channels.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <string>
#include <vector>

#include "tests/fakes/nccl/world.h"

namespace lockstep::fake_nccl {

enum class Kind { all_reduce, broadcast, reduce, all_gather, reduce_scatter, send, recv };

struct Operation {
  Kind kind = Kind::all_reduce;
  const void* from = nullptr;
  void* to = nullptr;
  std::size_t count = 0;  // of one part
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t op = ncclSum;
  int peer = 0;  // or root
  cudaStream_t stream = nullptr;
  bool hangs = false;
  bool is_wrong = false;  // its result is

  // "all_reduce 100 float32 sum".
  std::string describe() const;
  std::size_t bytes_read(int rank, int size) const;
  std::size_t bytes_written(int rank, int size) const;
};

const char* name_of(Kind kind);
std::size_t size_of(ncclDataType_t type);

// Addresses are the host's. False if it was aborted. `round` counts the slots' rounds on this rank.
bool run_collective(World& world, int rank, const Operation& operation, std::uint64_t& round,
                    const std::atomic<bool>& aborted, std::string& violation);
// All of one group, beside each other.
bool run_messages(World& world, int rank, std::vector<Operation> operations, const std::atomic<bool>& aborted);

}  // namespace lockstep::fake_nccl
