// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/reduction.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <type_traits>
#include <vector>

#include "lockstep/device/dtype.h"
#include "runtime/base/clones.h"
#include "runtime/device/half_arrays.h"

namespace lockstep::comm {
namespace {

// Elements per block: three blocks of the widest type stay in the first-level cache.
constexpr std::size_t kBlock = 1024;

// The type that an element type is accumulated in, and the way there and back. Unsigned integers, because they wrap.
template <typename T>
struct Accumulate {
  using Type = T;
};
template <>
struct Accumulate<bfloat16> {
  using Type = float;
  static float load(bfloat16 value) { return to_float(value); }
  static bfloat16 store(float value) { return to_bfloat16(value); }
};
template <>
struct Accumulate<float16> {
  using Type = float;  // by whole blocks: device/half_arrays.h
};
template <>
struct Accumulate<std::int32_t> {
  using Type = std::int64_t;
  static std::int64_t load(std::int32_t value) { return value; }
  static std::int32_t store(std::int64_t value) { return static_cast<std::int32_t>(value); }
};
template <>
struct Accumulate<std::uint8_t> {
  using Type = std::int32_t;
  static std::int32_t load(std::uint8_t value) { return value; }
  static std::uint8_t store(std::int32_t value) { return static_cast<std::uint8_t>(value); }
};

template <typename A, typename T>
A loaded(T value) {
  if constexpr (std::is_same_v<T, A>) {
    return value;
  } else {
    return Accumulate<T>::load(value);
  }
}
template <typename T, typename A>
T stored(A value) {
  if constexpr (std::is_same_v<T, A>) {
    return value;
  } else {
    return Accumulate<T>::store(value);
  }
}

template <typename A>
using Wrapping = typename std::conditional_t<std::is_integral_v<A>, std::make_unsigned<A>, std::type_identity<A>>::type;

struct Sum {
  template <typename A>
  static A apply(A a, A b) {
    return static_cast<A>(static_cast<Wrapping<A>>(a) + static_cast<Wrapping<A>>(b));
  }
};
struct Product {
  template <typename A>
  static A apply(A a, A b) {
    return static_cast<A>(static_cast<Wrapping<A>>(a) * static_cast<Wrapping<A>>(b));
  }
};
// If b is a NaN the comparison is false and gives b; if a is one, the second test gives a.
struct Min {
  template <typename A>
  static A apply(A a, A b) {
    return (a < b || a != a) ? a : b;
  }
};
struct Max {
  template <typename A>
  static A apply(A a, A b) {
    return (a > b || a != a) ? a : b;
  }
};

// out may be a or b.
template <typename Op, typename A>
LOCKSTEP_VECTOR_CLONES void combine(const A* a, const A* b, A* out, std::size_t count) {
  LOCKSTEP_INDEPENDENT
  for (std::size_t i = 0; i < count; ++i) out[i] = Op::apply(a[i], b[i]);
}
template <typename Op, typename T, typename A>
LOCKSTEP_VECTOR_CLONES void combine_two(const T* __restrict a, const T* __restrict b, A* __restrict out,
                                        std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] = Op::apply(loaded<A>(a[i]), loaded<A>(b[i]));
}
template <typename T, typename A>
LOCKSTEP_VECTOR_CLONES void load(const T* __restrict from, A* __restrict out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] = loaded<A>(from[i]);
}
template <typename T, typename A>
LOCKSTEP_VECTOR_CLONES void store(const A* __restrict from, T* __restrict out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] = stored<T>(from[i]);
}
void load(const float16* from, float* out, std::size_t count) { to_floats(from, out, count); }
void store(const float* from, float16* out, std::size_t count) { to_float16s(from, out, count); }
template <typename A>
LOCKSTEP_VECTOR_CLONES void divide(A* values, A divisor, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<A>(values[i] / divisor);
}
template <typename A>
LOCKSTEP_VECTOR_CLONES void multiply(A* values, A factor, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) values[i] *= factor;
}

// The division of accumulated values: a product where that is exact, for it costs a quarter of a quotient, or where the
// divisor is not a whole number.
template <typename A>
struct Scale {
  A before = 1;  // a power of two: exact
  A factor = 1;
  A divisor = 1;  // 1 if there is a factor

  bool is_needed() const { return before != 1 || factor != 1 || divisor != 1; }
  bool is_a_factor() const { return before == 1 && divisor == 1; }
  void apply(A* values, std::size_t count) const {
    if (before != 1) multiply(values, before, count);
    if (divisor != 1) {
      divide(values, divisor, count);
    } else {
      multiply(values, factor, count);
    }
  }
};

template <typename A>
Scale<A> scale_of(const Reduction& reduction) {
  const auto before = static_cast<A>(reduction.scale);
  if (reduction.divisor == 0) return {.before = before};
  const std::int64_t common = std::gcd(reduction.divisor, reduction.unit);
  const std::int64_t divisor = reduction.divisor / common;
  const std::int64_t unit = reduction.unit / common;
  if constexpr (std::is_floating_point_v<A>) {
    if (unit != 1) {
      return {.before = before, .factor = static_cast<A>(static_cast<double>(unit) / static_cast<double>(divisor))};
    }
    if (std::has_single_bit(static_cast<std::uint64_t>(divisor))) {
      return {.before = before, .factor = A{1} / static_cast<A>(divisor)};
    }
  }
  return {.before = before, .divisor = static_cast<A>(divisor)};
}

// The tree over sources[0, ranks) into `out`, one block. A node's left child has the largest power of two below its
// size. If `out` is a source, it is rank 0's block or the ranks are at most two: a destination is written last.
template <typename Op, typename T, typename A>
void fold(const T* const* sources, std::size_t ranks, A* out, std::size_t count) {
  if (ranks == 1) return load(sources[0], out, count);
  if (ranks == 2) {
    if constexpr (std::is_same_v<T, A>) {
      return combine<Op>(sources[0], sources[1], out, count);
    } else if constexpr (!std::is_same_v<T, float16>) {
      return combine_two<Op>(sources[0], sources[1], out, count);
    }
  }
  const std::size_t left = std::bit_ceil(ranks) / 2;
  fold<Op>(sources, left, out, count);
  if constexpr (std::is_same_v<T, A>) {
    if (ranks - left == 1) return combine<Op>(out, sources[left], out, count);
  }
  alignas(64) A right[kBlock];
  fold<Op>(sources + left, ranks - left, right, count);
  combine<Op>(out, right, out, count);
}

// The common case of two ranks: both get the result while it is in a register. Nothing is lost by a factor of 1.
template <typename Op, typename A>
LOCKSTEP_VECTOR_CLONES void combine_for_both(const A* a, const A* b, A* x, A* y, A factor, std::size_t count) {
  LOCKSTEP_INDEPENDENT
  for (std::size_t i = 0; i < count; ++i) {
    A value = Op::apply(a[i], b[i]);
    if constexpr (std::is_floating_point_v<A>) value *= factor;
    x[i] = value;
    y[i] = value;
  }
}

// One block into out.
template <typename Op, typename A, typename From, typename To>
void reduce_block(const From* const* blocks, std::size_t ranks, const Scale<A>& scale, To* out, std::size_t length) {
  if constexpr (std::is_same_v<From, A> && std::is_same_v<To, A>) {
    if (ranks == 2) {  // nothing in between
      combine<Op>(blocks[0], blocks[1], out, length);
      if (scale.is_needed()) scale.apply(out, length);
      return;
    }
  }
  alignas(64) A accumulated[kBlock];
  fold<Op>(blocks, ranks, accumulated, length);
  if (scale.is_needed()) scale.apply(accumulated, length);
  store(accumulated, out, length);
}

// So many need no memory but the stack's.
constexpr std::size_t kFewSources = 256;

using SourceSpans = std::span<const std::byte* const>;
using Destinations = std::span<std::byte* const>;

// From elements, or partials, to either, accumulated as A.
template <typename Op, typename A, typename From, typename To>
void reduce_as(const Scale<A>& scale, SourceSpans sources, Destinations destinations, std::size_t count) {
  if constexpr (std::is_same_v<From, A> && std::is_same_v<To, A>) {
    if (sources.size() == 2 && destinations.size() == 2 && scale.is_a_factor()) {
      return combine_for_both<Op>(reinterpret_cast<const From*>(sources[0]), reinterpret_cast<const From*>(sources[1]),
                                  reinterpret_cast<To*>(destinations[0]), reinterpret_cast<To*>(destinations[1]),
                                  scale.factor, count);
    }
  }
  const From* few[kFewSources];
  std::vector<const From*> many(sources.size() > kFewSources ? sources.size() : 0);
  const From** const blocks = many.empty() ? few : many.data();
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t length = std::min(kBlock, count - begin);
    for (std::size_t r = 0; r < sources.size(); ++r) blocks[r] = reinterpret_cast<const From*>(sources[r]) + begin;
    To* out = reinterpret_cast<To*>(destinations[0]) + begin;
    reduce_block<Op>(blocks, sources.size(), scale, out, length);
    for (std::byte* other : destinations.subspan(1)) {
      std::memcpy(reinterpret_cast<To*>(other) + begin, out, length * sizeof(To));
    }
  }
}

enum class Half { whole, to_partial, of_partials };

template <typename Op, typename T>
void reduce_half(Half half, const Scale<typename Accumulate<T>::Type>& scale, SourceSpans sources,
                 Destinations destinations, std::size_t count) {
  using A = typename Accumulate<T>::Type;
  switch (half) {
    case Half::whole: return reduce_as<Op, A, T, T>(scale, sources, destinations, count);
    case Half::to_partial: return reduce_as<Op, A, T, A>({}, sources, destinations, count);
    case Half::of_partials: return reduce_as<Op, A, A, T>(scale, sources, destinations, count);
  }
}

template <typename T>
void reduce_half(Half half, const Reduction& reduction, SourceSpans sources, Destinations destinations,
                 std::size_t count) {
  const auto scale = scale_of<typename Accumulate<T>::Type>(reduction);
  switch (reduction.op) {
    case ReduceOp::sum:
    case ReduceOp::avg: return reduce_half<Sum, T>(half, scale, sources, destinations, count);
    case ReduceOp::min: return reduce_half<Min, T>(half, scale, sources, destinations, count);
    case ReduceOp::max: return reduce_half<Max, T>(half, scale, sources, destinations, count);
    case ReduceOp::product: return reduce_half<Product, T>(half, scale, sources, destinations, count);
  }
}

void reduce_half(Half half, const Reduction& reduction, SourceSpans sources, Destinations destinations,
                 std::size_t count) {
  switch (reduction.dtype) {
    case DType::f32: return reduce_half<float>(half, reduction, sources, destinations, count);
    case DType::f64: return reduce_half<double>(half, reduction, sources, destinations, count);
    case DType::bf16: return reduce_half<bfloat16>(half, reduction, sources, destinations, count);
    case DType::f16: return reduce_half<float16>(half, reduction, sources, destinations, count);
    case DType::i32: return reduce_half<std::int32_t>(half, reduction, sources, destinations, count);
    case DType::i64: return reduce_half<std::int64_t>(half, reduction, sources, destinations, count);
    case DType::u8: return reduce_half<std::uint8_t>(half, reduction, sources, destinations, count);
  }
}

// Values as they are, of partials that have the elements' type.
Reduction undivided(const Reduction& reduction) { return {.dtype = reduction.dtype, .op = reduction.op}; }

}  // namespace

void reduce(const Reduction& reduction, SourceSpans sources, Destinations destinations, std::size_t count) {
  reduce_half(Half::whole, reduction, sources, destinations, count);
}

DType dtype_of_partials(const Reduction& reduction) {
  const bool selects = reduction.op == ReduceOp::min || reduction.op == ReduceOp::max;
  const bool divides = reduction.divisor != 0 && reduction.divisor != 1;
  switch (reduction.dtype) {
    case DType::bf16:
    case DType::f16: return selects && !divides && reduction.scale == 1 ? reduction.dtype : DType::f32;
    case DType::i32: return divides ? DType::i64 : DType::i32;
    case DType::u8: return divides ? DType::i32 : DType::u8;
    default: return reduction.dtype;
  }
}

void reduce_to_partial(const Reduction& reduction, SourceSpans sources, std::byte* partial, std::size_t count) {
  const Half half = dtype_of_partials(reduction) == reduction.dtype ? Half::whole : Half::to_partial;
  reduce_half(half, undivided(reduction), sources, Destinations(&partial, 1), count);
}

void reduce_partials(const Reduction& reduction, SourceSpans partials, Destinations destinations, std::size_t count) {
  const Half half = dtype_of_partials(reduction) == reduction.dtype ? Half::whole : Half::of_partials;
  reduce_half(half, reduction, partials, destinations, count);
}

}  // namespace lockstep::comm
