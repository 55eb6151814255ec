// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/values.h"

#include <cstdint>

#include "lockstep/trace/span.h"

namespace lockstep {
namespace {

BufferView as_buffer(std::span<std::byte> bytes) {
  return {bytes.data(), static_cast<std::int64_t>(bytes.size()), DType::u8};
}

template <typename T>
T reduced(T value, ProcessGroup& group, ReduceOp op) {
  const trace::Span span(trace::SpanKind::collective);
  group.all_reduce(BufferView(std::span<T>(&value, 1)), {.op = op}).wait();
  return value;
}

}  // namespace

void broadcast_bytes(std::span<std::byte> bytes, ProcessGroup& group, int root) {
  const trace::Span span(trace::SpanKind::collective);
  group.broadcast(as_buffer(bytes), root).wait();
}

void all_gather_bytes(std::span<const std::byte> own, std::span<std::byte> all, ProcessGroup& group) {
  const trace::Span span(trace::SpanKind::collective);
  const ConstBufferView input(own.data(), static_cast<std::int64_t>(own.size()), DType::u8);
  group.all_gather(input, as_buffer(all)).wait();
}

std::int64_t all_reduce_number(std::int64_t value, ProcessGroup& group, ReduceOp op) {
  return reduced(value, group, op);
}
double all_reduce_number(double value, ProcessGroup& group, ReduceOp op) { return reduced(value, group, op); }

std::string broadcast_value(std::string_view text, ProcessGroup& group, int root) {
  std::string result(text);
  result.resize(broadcast_value(result.size(), group, root));
  if (!result.empty()) broadcast_bytes(std::as_writable_bytes(std::span(result)), group, root);
  return result;
}

}  // namespace lockstep
