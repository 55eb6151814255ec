// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/nccl/collective.h"

#include <fmt/format.h>

#include <cstring>

#include "lockstep/device/dtype.h"
#include "runtime/comm/nccl/goodbye.h"

namespace lockstep::nccl {

using comm::OpKind;

ncclDataType_t data_type_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return ncclFloat32;
    case DType::f64: return ncclFloat64;
    case DType::bf16: return ncclBfloat16;
    case DType::f16: return ncclFloat16;
    case DType::i32: return ncclInt32;
    case DType::i64: return ncclInt64;
    case DType::u8: return ncclUint8;
  }
  return ncclUint8;
}

ncclRedOp_t operation_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg: return ncclSum;
    case ReduceOp::min: return ncclMin;
    case ReduceOp::max: return ncclMax;
    case ReduceOp::product: return ncclProd;
  }
  return ncclSum;
}

void NcclCollective::prepare(const LaunchContext& context) {
  input_.prepare(context, args.input, is_in_place() ? args.output.data : nullptr);
  if (!is_in_place()) output_.prepare(context, args.output, args.output.data);
  in_ = input_.data();
  out_ = (is_in_place() ? input_ : output_).result();
  if (word_count() == 0) return;
  words_on_device_ = context.runtime.allocate(sizeof(comm::InlineScalars), context.stream);
  words_on_host_ = context.runtime.allocate_pinned(sizeof(comm::InlineScalars), context.stream.device);
  const comm::InlineScalars own = comm::summands(args.record.note, args.record.words);
  std::memcpy(words_on_host_.get(), own.data(), sizeof own);
}

std::size_t NcclCollective::word_count() const {
  const std::size_t fields = args.record.note.fields();
  return fields > 0 || args.record.weighted || args.record.kind == OpKind::barrier ? 1 + fields : 0;
}

void NcclCollective::launch(const LaunchContext& context) {
  if (ready) context.runtime.block(context.stream, ready.get());
  if (comm::is_source(args.record, context.rank)) input_.copy_in(context);
  if (words_on_device_) {
    context.runtime.copy(words_on_device_.get(), words_on_host_.get(), word_count() * sizeof(std::int64_t),
                         context.stream);
  }
  context.communicator->group_start();
  try {
    call(context);
  } catch (...) {
    // A group that was begun would swallow every later call of this thread.
    context.communicator->api().group_end();
    throw;
  }
  context.communicator->group_end();
}

// Parts between this rank and each other. Giver, taker: the one rank that gives or takes, or -1 for all.
void NcclCollective::exchange(const LaunchContext& context, bool gives_parts, bool takes_parts, int giver, int taker) {
  const Api& api = context.communicator->api();
  const ncclComm_t comm = context.communicator->get();
  const auto stream = static_cast<cudaStream_t>(context.stream.handle);
  const ncclDataType_t type = data_type_of(args.record.dtype);
  const std::size_t part = args.count() * args.element_bytes();
  const bool gives = giver < 0 || giver == context.rank;
  const bool takes = taker < 0 || taker == context.rank;
  const auto at = [&](auto* data, bool in_parts, int r) {
    return in_parts && data != nullptr ? data + static_cast<std::size_t>(r) * part : data;
  };
  const auto* const in = static_cast<const std::byte*>(in_);
  auto* const out = static_cast<std::byte*>(out_);
  for (int r = 0; r < context.size; ++r) {
    const bool to = gives && (taker < 0 || taker == r);
    const bool from = takes && (giver < 0 || giver == r);
    if (r == context.rank) {
      const std::byte* const own = at(in, gives_parts, r);
      std::byte* const there = at(out, takes_parts, r);
      if (to && from && own != there) context.runtime.copy(there, own, part, context.stream);
      continue;
    }
    if (to) {
      context.communicator->call("ncclSend", api.send(at(in, gives_parts, r), args.count(), type, r, comm, stream));
    }
    if (from) {
      context.communicator->call("ncclRecv", api.recv(at(out, takes_parts, r), args.count(), type, r, comm, stream));
    }
  }
}

void NcclCollective::call(const LaunchContext& context) {
  const Api& api = context.communicator->api();
  const ncclComm_t comm = context.communicator->get();
  const auto stream = static_cast<cudaStream_t>(context.stream.handle);
  const ncclDataType_t type = data_type_of(args.record.dtype);
  const ncclRedOp_t op = operation_of(args.record.op);
  const std::size_t count = args.count();
  const int root = args.record.root;
  const auto take = [&](const char* name, ncclResult_t result) { context.communicator->call(name, result); };
  if (void* const sums = words_on_device_.get()) {
    take("ncclAllReduce", api.all_reduce(sums, sums, word_count(), ncclInt64, ncclSum, comm, stream));
  }
  if (count == 0) return;
  switch (args.record.kind) {
    case OpKind::barrier:
    case OpKind::allocate: return;
    case OpKind::all_reduce: return take("ncclAllReduce", api.all_reduce(in_, out_, count, type, op, comm, stream));
    case OpKind::broadcast: return take("ncclBroadcast", api.broadcast(in_, out_, count, type, root, comm, stream));
    case OpKind::reduce: return take("ncclReduce", api.reduce(in_, out_, count, type, op, root, comm, stream));
    case OpKind::all_gather: return take("ncclAllGather", api.all_gather(in_, out_, count, type, comm, stream));
    case OpKind::reduce_scatter:
      return take("ncclReduceScatter", api.reduce_scatter(in_, out_, count, type, op, comm, stream));
    case OpKind::gather: return exchange(context, false, true, -1, root);
    case OpKind::scatter: return exchange(context, true, false, root, -1);
    case OpKind::all_to_all: return exchange(context, true, true, -1, -1);
  }
}

void NcclCollective::after_launch(const LaunchContext& context) {
  const comm::OpRecord& record = args.record;
  const bool has_result = record.kind != OpKind::reduce || record.root == context.rank;
  const std::int64_t* divisor = record.op == ReduceOp::avg ? context.world_size : nullptr;
  if (record.weighted) divisor = static_cast<const std::int64_t*>(words_on_device_.get());
  if (divisor != nullptr && has_result && record.count > 0) {
    context.runtime.divide(BufferView(out_, record.count, record.dtype, context.stream.device), 1, divisor,
                           args.zero_if_weightless ? OverZero::is_zero : OverZero::stays, context.stream);
  }
  if (args.total_on_device != nullptr) {
    context.runtime.copy(args.total_on_device, words_on_device_.get(), sizeof(std::int64_t), context.stream);
  }
  if (words_on_device_) {
    context.runtime.copy(words_on_host_.get(), words_on_device_.get(), word_count() * sizeof(std::int64_t),
                         context.stream);
  }
  (is_in_place() ? input_ : output_).copy_out(context);
}

std::optional<std::string> NcclCollective::problem() const {
  if (words[0] >= 0) return std::nullopt;
  return comm::describe_too_heavy(
      args.record, sequence, fmt::format("{} of rank {} and those of the others", args.record.words[0], args.rank));
}

bool NcclCollective::is_after(int, const Goodbye& goodbye) const { return sequence > goodbye.last; }

bool NcclCollective::is_for_host() const {
  return args.output.device.kind == DeviceKind::cpu && args.output.bytes() > 0;
}

void NcclCollective::finish() {
  if (words_on_host_) {
    comm::InlineScalars sums{};
    std::memcpy(sums.data(), words_on_host_.get(), word_count() * sizeof(std::int64_t));
    words = comm::from_sums(args.record.note, args.record.words, sums, args.size);
  }
  (is_in_place() ? input_ : output_).finish();
  words_on_device_.reset();
  words_on_host_.reset();
}

}  // namespace lockstep::nccl
