// SPDX-License-Identifier: Apache-2.0
// Assigns gradients to buckets. The plan is a pure function, equal on all ranks for equal input.
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

// A parameter as the Reducer knows it: without a tensor or a framework.
struct LOCKSTEP_API ParameterSpec {
  std::string name;                 // unique within the model
  DType dtype = DType::f32;         // f32, f64, bf16 or f16
  std::vector<std::int64_t> shape;  // empty for a scalar

  // The number of elements; 1 for a scalar. InvalidArgument if a dimension is negative or the product exceeds 64 bits.
  std::int64_t count() const;
  std::size_t bytes() const { return static_cast<std::size_t>(count()) * size_of(dtype); }
  // A text for messages: "'fc1.weight' float32 [784, 256]".
  std::string describe() const;
};

struct LOCKSTEP_API BucketOptions {
  // The size at which a bucket is closed, in bytes, padding included: it holds as many or more. 0 gives every parameter
  // a bucket of its own. Default: in CPU memory 2 MiB, cache-sized, so that sums run at the speed of L2; on a device 25
  // MiB, because starting a collective there costs as much as sending several MB.
  std::optional<std::size_t> cap_bytes = {};
  // The cap of each dtype's first bucket, in bytes: smaller, so that communication starts early.
  std::size_t first_cap_bytes = 1 << 20;
  // The number of equal parts of whole cache lines into which padding makes each bucket divisible; at least 1. A
  // Reducer with Shard::optimizer sets it to the number of ranks.
  int parts = 1;

  // These options with the defaults of that memory filled in.
  BucketOptions in_memory_of(DeviceKind kind) const;
};

// The alignment of gradients and buckets, in bytes: a cache line, and the widest vector register.
inline constexpr std::size_t kGradientAlignment = 64;

// The place of one parameter's gradient.
struct GradientSlot {
  int bucket = 0;
  std::size_t offset = 0;  // bytes from the beginning of the arena, 64-byte aligned
};

struct Bucket {
  DType dtype = DType::f32;
  std::size_t offset = 0;  // bytes from the beginning of the arena
  std::int64_t count = 0;  // elements, padding included (it stays zero): equal parts of whole cache lines
  // Indices into the specs, in the order in which the gradients lie.
  std::vector<int> parameters;
};

struct BucketPlan {
  std::vector<Bucket> buckets;               // in launch order: the order in which they become full
  std::vector<GradientSlot> gradient_slots;  // by parameter
  // The size of the arena. It is the same for every order, and with one part also for all caps.
  std::size_t arena_bytes = 0;
};

// Plans the buckets. `order` is the order in which gradients become ready: a permutation of the parameters' indices. A
// parameter is never split; a bucket holds one dtype and exceeds its cap by less than one parameter. Options that are
// left to their defaults get those of CPU memory.
//
// Buckets are in the order in which their last parameter becomes ready, so a dtype that is rare in the model does not
// hold up the others. InvalidArgument if `order` is not a permutation, a name is empty or occurs twice, or a dtype
// can't be averaged.
LOCKSTEP_API BucketPlan plan_buckets(std::span<const ParameterSpec> specs, std::span<const int> order,
                                     const BucketOptions& options = {});

// The state that ranks divide among themselves; each rank has a whole copy of all else. `optimizer`: the optimizer's
// state, ZeRO's stage 1 (Rajbhandari et al., arXiv:1910.02054).
enum class Shard : std::uint8_t { none, optimizer };

// A part of a rank's shard: elements [begin, end) of a parameter, in the order of its memory; at least one.
struct ParameterShard {
  int parameter = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;

  bool operator==(const ParameterShard&) const = default;
};

// The shard of `rank` in a bucket that is cut into `size` equal parts: part number `rank`, as elements of its
// parameters, in the order in which they lie, without the padding. `plan` has buckets of `size` parts.
LOCKSTEP_API std::vector<ParameterShard> shards_of(const BucketPlan& plan, std::span<const ParameterSpec> specs,
                                                   int bucket, int rank, int size);

}  // namespace lockstep
