// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/process_group_base.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "runtime/comm/arguments.h"
#include "runtime/comm/parent_watch.h"
#include "runtime/comm/roster_cause.h"

namespace lockstep::comm {

std::string_view ProcessGroupBase::last_collective() const {
  return last_sequence() == 0 ? std::string_view() : name_of(last_kind_.load(std::memory_order_relaxed));
}

CollectiveArgs ProcessGroupBase::args_of(OpKind kind, const ConstBufferView& input, const BufferView& output,
                                         std::int64_t count) {
  require_owner(name_of(kind));
  last_kind_.store(kind, std::memory_order_relaxed);
  CollectiveArgs args;
  args.record.kind = kind;
  args.record.dtype = output.dtype;
  args.record.count = count;
  args.input = input;
  args.output = output;
  args.rank = rank();
  args.size = size();
  args.reduction.dtype = output.dtype;
  return args;
}

void ProcessGroupBase::check_arena_bytes(std::size_t bytes) {
  constexpr std::size_t kMost = std::size_t{1} << 48;
  if (bytes <= kMost) return;
  throw InvalidArgument(fmt::format(
      "allocate of {} bytes: no machine has so much memory; see whether the size came from a negative number", bytes));
}

std::shared_ptr<ProcessGroup> ProcessGroupBase::make_subgroup(const Subgroup& subgroup) {
  if (!context_.make_group) {
    throw BackendUnavailable(
        fmt::format("this group of backend '{}' can't make a subgroup, since init_process_group did not make this "
                    "group; call init_process_group for a group that can",
                    backend()));
  }
  GroupContext own = context_;
  own.roster.clear();
  for (const int rank : subgroup.ranks) {
    own.roster.push_back(context_.roster[static_cast<std::size_t>(rank)]);
    own.roster.back().group = subgroup.name;
  }
  const std::vector<int> beside = rendezvous::ranks_beside(own.roster, subgroup.rank);
  own.identity.rank = subgroup.rank;
  own.identity.world_size = static_cast<int>(own.roster.size());
  own.identity.local_rank = static_cast<int>(std::find(beside.begin(), beside.end(), subgroup.rank) - beside.begin());
  own.identity.local_world_size = static_cast<int>(beside.size());
  const auto watch = std::make_shared<ParentWatch>(*this);
  own.store = std::make_shared<SubgroupStore>(subgroup.store_prefix, context_.store, watch);
  own.scope = context_.scope + "/" + subgroup.store_prefix;
  own.check = [watch] { watch->check(); };
  own.timeout = subgroup.timeout;
  try {
    auto group = context_.make_group(context_, own, Deadline::after(subgroup.timeout));
    watch->end();
    return group;
  } catch (const Error& error) {
    watch->end();
    throw_again(error, named_by_group(own.roster, error.what()));
  }
}

Work ProcessGroupBase::all_reduce(const BufferView& buffer, const ReductionOptions& options) {
  check_buffer(*this, "all_reduce", buffer);
  return start_reduction(OpKind::all_reduce, buffer, buffer, options);
}

Work ProcessGroupBase::start_reduction(OpKind kind, const ConstBufferView& input, const BufferView& output,
                                       const ReductionOptions& options) {
  check_weight(*this, name_of(kind), output, options);
  check_note(*this, name_of(kind), options.note);
  CollectiveArgs args = args_of(kind, input, output, output.count);
  args.record.op = args.reduction.op = options.op;
  args.record.weighted = options.weight.has_value();
  args.record.note = NoteOps(options.note);
  args.record.words = words_of(options);
  args.record.unit = args.reduction.unit = options.unit;
  args.zero_if_weightless = options.zero_if_weightless;
  args.total_on_device = options.total_on_device;
  return start(std::move(args));
}

Work ProcessGroupBase::broadcast(const BufferView& buffer, int root) {
  check_buffer(*this, "broadcast", buffer);
  check_rank(*this, "broadcast", "root", root);
  CollectiveArgs args = args_of(OpKind::broadcast, buffer, buffer, buffer.count);
  args.record.root = root;
  return start(std::move(args));
}

Work ProcessGroupBase::reduce(const BufferView& buffer, int root, ReduceOp op) {
  check_buffer(*this, "reduce", buffer);
  check_rank(*this, "reduce", "root", root);
  CollectiveArgs args = args_of(OpKind::reduce, buffer, buffer, buffer.count);
  args.record.root = root;
  args.record.op = args.reduction.op = op;
  return start(std::move(args));
}

Work ProcessGroupBase::all_gather(const ConstBufferView& input, const BufferView& output) {
  check_parts(*this, "all_gather", input, output, rank());
  return start(args_of(OpKind::all_gather, input, output, input.count));
}

Work ProcessGroupBase::reduce_scatter(const ConstBufferView& input, const BufferView& output,
                                      const ReductionOptions& options) {
  check_parts(*this, "reduce_scatter", output, input, rank());
  return start_reduction(OpKind::reduce_scatter, input, output, options);
}

Work ProcessGroupBase::gather(const ConstBufferView& input, const BufferView& output, int root) {
  check_rank(*this, "gather", "root", root);
  if (rank() == root) {
    check_parts(*this, "gather", input, output, root);
  } else {
    check_buffer(*this, "gather", input);
  }
  const BufferView nothing(nullptr, 0, input.dtype);
  CollectiveArgs args = args_of(OpKind::gather, input, rank() == root ? output : nothing, input.count);
  args.record.root = root;
  return start(std::move(args));
}

Work ProcessGroupBase::scatter(const ConstBufferView& input, const BufferView& output, int root) {
  check_rank(*this, "scatter", "root", root);
  if (rank() == root) {
    check_parts(*this, "scatter", output, input, root);
  } else {
    check_buffer(*this, "scatter", output);
  }
  const ConstBufferView nothing(nullptr, 0, output.dtype);
  CollectiveArgs args = args_of(OpKind::scatter, rank() == root ? input : nothing, output, output.count);
  args.record.root = root;
  return start(std::move(args));
}

Work ProcessGroupBase::all_to_all(const ConstBufferView& input, const BufferView& output) {
  check_exchange(*this, input, output);
  return start(args_of(OpKind::all_to_all, input, output, input.count / size()));
}

Work ProcessGroupBase::barrier() { return start(args_of(OpKind::barrier, {}, {}, 0)); }

Work ProcessGroupBase::message(const P2pOp& p2p) {
  const std::string_view operation = p2p.is_send ? "send" : "recv";
  require_owner(operation);
  check_buffer(*this, operation, p2p.buffer);
  check_rank(*this, operation, p2p.is_send ? "destination" : "source", p2p.peer);
  check_tag(*this, operation, p2p.tag);
  return start_message(p2p);
}

Work ProcessGroupBase::send(const ConstBufferView& buffer, int destination, int tag) {
  return message({.is_send = true, .buffer = buffer, .peer = destination, .tag = tag});
}

Work ProcessGroupBase::recv(const BufferView& buffer, int source, int tag) {
  return message({.buffer = buffer, .peer = source, .tag = tag, .target = buffer.data});
}

}  // namespace lockstep::comm
