// SPDX-License-Identifier: Apache-2.0
// Assigns gradients to buckets. The plan is a pure function of its inputs, so ranks with equal inputs have equal plans.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/device/device.h"
#include "lockstep/device/dtype.h"

namespace lockstep {

// ParameterSpec describes a parameter for the Reducer, which depends on no tensor class or framework.
struct LOCKSTEP_API ParameterSpec {
  std::string name;                 // unique within the model
  DType dtype = DType::f32;         // f32, f64, bf16 or f16
  std::vector<std::int64_t> shape;  // empty for a scalar

  // Returns the number of elements, which is 1 for a scalar. Throws InvalidArgument if a dimension is negative or the
  // number exceeds 64 bits.
  std::int64_t count() const;
  std::size_t bytes() const { return static_cast<std::size_t>(count()) * size_of(dtype); }
  // Returns a text for messages: "'fc1.weight' float32 [784, 256]".
  std::string describe() const;
};

struct LOCKSTEP_API BucketOptions {
  // The size at which a bucket is closed, in bytes, padding included: the bucket gets no parameter after it has reached
  // this size. 0 gives every parameter its own bucket. The default in CPU memory is 2 MiB, so that a bucket fits into
  // the L2 cache. The default on a device is 25 MiB, because starting a collective on a device costs as much as sending
  // several MB.
  std::optional<std::size_t> cap_bytes = {};
  // The cap of each dtype's first bucket, in bytes: smaller than the other buckets' cap, so that communication
  // starts early.
  std::size_t first_cap_bytes = 1 << 20;
  // The number of equal parts of each bucket, at least 1. Padding makes each part a whole number of cache lines. A
  // Reducer with Shard::optimizer sets `parts` to the number of ranks.
  int parts = 1;

  // Returns these options with the unset members filled with the defaults for the memory of `kind`.
  BucketOptions in_memory_of(DeviceKind kind) const;
};

// The alignment of gradients and buckets, in bytes: the size of a cache line and of the widest vector register.
inline constexpr std::size_t kGradientAlignment = 64;

// GradientSlot is the place of one parameter's gradient.
struct GradientSlot {
  int bucket = 0;
  std::size_t offset = 0;  // number of bytes from the beginning of the arena, a multiple of 64
};

struct Bucket {
  DType dtype = DType::f32;
  std::size_t offset = 0;  // number of bytes from the beginning of the arena
  // The number of elements, padding included. The padding stays zero, and makes the bucket BucketOptions::parts equal
  // parts of whole cache lines.
  std::int64_t count = 0;
  // The indices of the bucket's parameters in the specs, in the order of the gradients in memory.
  std::vector<int> parameters;
};

struct BucketPlan {
  std::vector<Bucket> buckets;               // in launch order, which is the order in which buckets become full
  std::vector<GradientSlot> gradient_slots;  // indexed by parameter
  // The size of the arena. The size does not depend on the order, and with BucketOptions::parts 1 not on the
  // caps either.
  std::size_t arena_bytes = 0;
};

// Plans the buckets. `order` is the order in which gradients become ready: a permutation of the parameters' indices. A
// parameter is never split; a bucket holds one dtype and exceeds its cap by less than one parameter. Unset options get
// the defaults of CPU memory.
//
// Buckets are in the order in which their last parameter becomes ready, so a dtype that is rare in the model does not
// delay the buckets of other dtypes. Throws InvalidArgument if `order` is not a permutation, a name is empty or occurs
// twice, or a dtype can't be averaged.
LOCKSTEP_API BucketPlan plan_buckets(std::span<const ParameterSpec> specs, std::span<const int> order,
                                     const BucketOptions& options = {});

// Shard names the state that ranks divide among themselves; each rank has a whole copy of all other state. `optimizer`
// is the optimizer's state, as in ZeRO's stage 1 (Rajbhandari et al., arXiv:1910.02054).
enum class Shard : std::uint8_t { none, optimizer };

// ParameterShard is a part of a rank's shard: elements [begin, end) of a parameter, in memory order, at least
// one element.
struct ParameterShard {
  int parameter = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;

  bool operator==(const ParameterShard&) const = default;
};

// Returns the shard of `rank` in a bucket of `size` equal parts: the parameters' elements in part number `rank`, in
// memory order, without the padding. `plan` was made with BucketOptions::parts = `size`.
LOCKSTEP_API std::vector<ParameterShard> shards_of(const BucketPlan& plan, std::span<const ParameterSpec> specs,
                                                   int bucket, int rank, int size);

}  // namespace lockstep
