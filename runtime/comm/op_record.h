// SPDX-License-Identifier: Apache-2.0
// The operation that a rank is about to do: all ranks compare it, so that a difference is an error and not a
// corruption.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/comm/process_group.h"
#include "lockstep/device/buffer_view.h"
#include "runtime/base/internal_api.h"
#include "runtime/comm/inline_scalars.h"

namespace lockstep::comm {

enum class OpKind : std::uint8_t {
  barrier,
  all_reduce,
  broadcast,
  reduce,
  all_gather,
  reduce_scatter,
  gather,
  scatter,
  all_to_all,
  allocate
};

struct OpRecord {
  OpKind kind = OpKind::barrier;
  DType dtype = DType::u8;
  ReduceOp op = ReduceOp::sum;
  bool weighted = false;
  std::int32_t root = 0;
  std::int64_t count = 0;  // elements of one part
  std::int64_t unit = 1;   // of the weights
  NoteOps note = {};
  InlineScalars words = {};  // the rank's own
};

// True if ranks that call these call the same: all but the words.
LOCKSTEP_INTERNAL_API bool same_operation(const OpRecord& a, const OpRecord& b);

// The weight and the note's values.
InlineScalars words_of(const ReductionOptions& options);

LOCKSTEP_INTERNAL_API std::string_view name_of(OpKind kind);
// "all_reduce (sum, 1000 x float32)".
std::string describe(const OpRecord& record);
// "all_reduce 42 (sum, 1000 x float32)".
LOCKSTEP_INTERNAL_API std::string describe(const OpRecord& record, std::uint64_t sequence);

// The text of a Mismatch: `who` called `own` and `other_who` called `other` as collective `sequence`.
LOCKSTEP_INTERNAL_API std::string describe_mismatch(std::uint64_t sequence, const std::string& who, const OpRecord& own,
                                                    const std::string& other_who, const OpRecord& other);
// Describes a weighted collective whose weights overflow. `weights`: "7 of rank 0 (...), ...".
LOCKSTEP_INTERNAL_API std::string describe_too_heavy(const OpRecord& record, std::uint64_t sequence,
                                                     const std::string& weights);

// One side of a message between two ranks, and what all backends say of it.
struct P2pOp {
  bool is_send = false;
  ConstBufferView buffer;
  int peer = 0;
  int tag = 0;
  void* target = nullptr;  // of a recv: the buffer's memory, which it writes
  bool done = false;
  // The number of the message among those from sender to receiver, from 1; a recv has it once it is matched, 0 before.
  std::uint64_t number = 0;

  // "send of 10 x float32 to rank 1 with tag 7".
  std::string describe() const;
};

// The text of a Mismatch: `who` called `recv`, and `sender` sent `count` elements of `dtype`.
std::string describe_mismatch(const P2pOp& recv, const std::string& who, const std::string& sender, std::int64_t count,
                              DType dtype);

}  // namespace lockstep::comm
