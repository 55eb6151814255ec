// SPDX-License-Identifier: Apache-2.0
// Defines functions that broadcast, reduce and gather single values: numbers, text and trivially copyable structs.
//
// The functions of this header are collective and blocking; programs call the functions in set-up code and between
// steps. Values are in host memory; a group on a device copies each value to the device and back.
// Failure: the functions of this header throw the group's errors, and Mismatch if the ranks' types differ in size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

// PlainValue is a type whose values can be sent to other ranks as bytes. A PlainValue must not hold pointers, because a
// pointer means nothing in another process, and the pointer's target is not sent.
template <typename T>
concept PlainValue = std::is_trivially_copyable_v<T> && std::is_default_constructible_v<T> && !std::is_pointer_v<T> &&
                     !std::is_same_v<T, std::string_view>;

// Gives every rank the bytes of `root`.
LOCKSTEP_API void broadcast_bytes(std::span<std::byte> bytes, ProcessGroup& group, int root);
// Gathers the bytes `own` of all ranks in rank order into `all`, which holds size() times as many bytes as `own`.
LOCKSTEP_API void all_gather_bytes(std::span<const std::byte> own, std::span<std::byte> all, ProcessGroup& group);
// Returns the reduction of the ranks' numbers; programs call all_reduce_value() below instead.
LOCKSTEP_API std::int64_t all_reduce_number(std::int64_t value, ProcessGroup& group, ReduceOp op);
LOCKSTEP_API double all_reduce_number(double value, ProcessGroup& group, ReduceOp op);

// Returns root's value on every rank. Throws InvalidArgument if `root` is not a rank of the group.
template <PlainValue T>
T broadcast_value(T value, ProcessGroup& group, int root = 0) {
  broadcast_bytes(std::as_writable_bytes(std::span(&value, 1)), group, root);
  return value;
}
// Returns root's text, of any length, on every rank; the texts that the other ranks pass are ignored.
LOCKSTEP_API std::string broadcast_value(std::string_view text, ProcessGroup& group, int root = 0);

// Returns the reduction of the numbers of all ranks, with equal bits on every rank. Integers are reduced as int64, and
// ReduceOp::avg truncates their mean towards zero; floating-point numbers are reduced in double.
//
//   const double mean_loss = lockstep::all_reduce_value(loss, *group, lockstep::ReduceOp::avg);
template <typename T>
requires(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) T
    all_reduce_value(T value, ProcessGroup& group, ReduceOp op = ReduceOp::sum) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(all_reduce_number(static_cast<std::int64_t>(value), group, op));
  } else {
    return static_cast<T>(all_reduce_number(static_cast<double>(value), group, op));
  }
}

// Returns the values of all ranks, in rank order. To gather text, call all_gather_text().
template <PlainValue T>
std::vector<T> all_gather_value(const T& value, ProcessGroup& group) {
  static_assert(!std::is_same_v<T, bool>, "a vector of bool has no bytes; gather an int");
  std::vector<T> all(static_cast<std::size_t>(group.size()));
  all_gather_bytes(std::as_bytes(std::span(&value, 1)), std::as_writable_bytes(std::span(all)), group);
  return all;
}

}  // namespace lockstep
