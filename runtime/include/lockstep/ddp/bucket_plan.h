// SPDX-License-Identifier: Apache-2.0
// Defines plan_buckets(), which assigns gradients to buckets. The plan is a pure function of the arguments of
// plan_buckets(), so ranks that pass equal arguments get equal plans.
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

// ParameterSpec describes a parameter to the Reducer, so that the Reducer does not depend on a tensor class
// or framework.
struct LOCKSTEP_API ParameterSpec {
  std::string name;                 // unique within the model
  DType dtype = DType::f32;         // f32, f64, bf16 or f16
  std::vector<std::int64_t> shape;  // empty for a scalar

  // Returns the number of elements of the parameter, which is 1 for a scalar. Throws InvalidArgument if a dimension is
  // negative or the number of elements exceeds 64 bits.
  std::int64_t count() const;
  std::size_t bytes() const { return static_cast<std::size_t>(count()) * size_of(dtype); }
  // Returns the text that describes the parameter in messages, such as "'fc1.weight' float32 [784, 256]".
  std::string describe() const;
};

struct LOCKSTEP_API BucketOptions {
  // The size in bytes, including padding, at which a bucket is full: a bucket that has reached this size gets no
  // further parameter. If cap_bytes is 0, every parameter gets a bucket to itself. The default cap in CPU memory is 2
  // MiB, so that a bucket fits into the L2 cache. The default cap on a device is 25 MiB, because starting a collective
  // on a device costs as much as sending several MB.
  std::optional<std::size_t> cap_bytes = {};
  // The cap of the first bucket of each dtype, in bytes. The first cap is smaller than the default of cap_bytes, so
  // that communication starts early.
  std::size_t first_cap_bytes = 1 << 20;
  // The number of equal parts into which each bucket is divided, at least 1. Padding makes each part of a bucket a
  // whole number of cache lines. A Reducer with Shard::optimizer sets `parts` to the number of ranks.
  int parts = 1;

  // Returns a copy of these options in which unset members have the defaults for memory of kind `kind`.
  BucketOptions in_memory_of(DeviceKind kind) const;
};

// The alignment of gradients and buckets, in bytes, which is the size of a cache line and of the widest
// vector register.
inline constexpr std::size_t kGradientAlignment = 64;

// GradientSlot says in which bucket, and at which place of the arena, the gradient of one parameter is.
struct GradientSlot {
  int bucket = 0;
  std::size_t offset = 0;  // number of bytes from the beginning of the arena, a multiple of 64
};

struct Bucket {
  DType dtype = DType::f32;
  std::size_t offset = 0;  // number of bytes from the beginning of the arena
  // The number of elements of the bucket, including padding. The padding stays zero, and lets the bucket be divided
  // into BucketOptions::parts equal parts of whole cache lines.
  std::int64_t count = 0;
  // The indices of the bucket's parameters in the list of ParameterSpecs, in the order of the gradients in memory.
  std::vector<int> parameters;
};

struct BucketPlan {
  std::vector<Bucket> buckets;               // in launch order, which is the order in which buckets become full
  std::vector<GradientSlot> gradient_slots;  // indexed by parameter
  // The size of the arena that holds all buckets. The arena's size does not depend on the order of the parameters; if
  // BucketOptions::parts is 1, the size does not depend on the buckets' caps either.
  std::size_t arena_bytes = 0;
};

// Assigns the parameters' gradients to buckets. `order` lists the parameters' indices in the order in which the
// gradients become ready. A parameter is never divided between buckets; a bucket holds parameters of one dtype, and
// exceeds its cap by less than one parameter. Unset options get their defaults for CPU memory.
//
// Buckets are sorted by the time at which a bucket's last gradient becomes ready, so a dtype that is rare in the model
// does not delay the buckets of other dtypes. Throws InvalidArgument if `order` is not a permutation, a name is empty
// or occurs twice, or a dtype can't be averaged.
LOCKSTEP_API BucketPlan plan_buckets(std::span<const ParameterSpec> specs, std::span<const int> order,
                                     const BucketOptions& options = {});

// Shard says which state the ranks divide among themselves; each rank has a whole copy of all other state.
// Shard::optimizer means that the ranks divide the optimizer's state, as in stage 1 of ZeRO (Rajbhandari et
// al., arXiv:1910.02054).
enum class Shard : std::uint8_t { none, optimizer };

// ParameterShard holds the elements of one parameter that belong to a rank's shard: elements [begin, end) in memory
// order, at least one element.
struct ParameterShard {
  int parameter = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;

  bool operator==(const ParameterShard&) const = default;
};

// Returns the shard of rank `rank` in bucket number `bucket`, which is divided into `size` equal parts: the shard is
// the parameters' elements in part number `rank`, in memory order, without padding. `plan` must have been made with
// BucketOptions::parts = `size`.
LOCKSTEP_API std::vector<ParameterShard> shards_of(const BucketPlan& plan, std::span<const ParameterSpec> specs,
                                                   int bucket, int rank, int size);

}  // namespace lockstep
