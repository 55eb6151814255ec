// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/op_record.h"

#include <fmt/format.h>

namespace lockstep::comm {

bool same_operation(const OpRecord& a, const OpRecord& b) {
  return a.kind == b.kind && a.dtype == b.dtype && a.op == b.op && a.weighted == b.weighted && a.root == b.root &&
         a.count == b.count && a.unit == b.unit && a.note == b.note;
}

InlineScalars words_of(const ReductionOptions& options) {
  InlineScalars words{};
  words[0] = options.weight.value_or(0);
  for (std::size_t i = 0; i < options.note.size(); ++i) words[1 + i] = options.note[i].value;
  return words;
}

std::string_view name_of(OpKind kind) {
  switch (kind) {
    case OpKind::barrier: return "barrier";
    case OpKind::all_reduce: return "all_reduce";
    case OpKind::broadcast: return "broadcast";
    case OpKind::reduce: return "reduce";
    case OpKind::all_gather: return "all_gather";
    case OpKind::reduce_scatter: return "reduce_scatter";
    case OpKind::gather: return "gather";
    case OpKind::scatter: return "scatter";
    case OpKind::all_to_all: return "all_to_all";
    case OpKind::allocate: return "allocate";
  }
  return "?";
}

namespace {

std::string details(const OpRecord& record) {
  switch (record.kind) {
    case OpKind::barrier: return {};
    case OpKind::allocate: return fmt::format(" ({} bytes)", record.count);
    case OpKind::all_reduce:
    case OpKind::reduce_scatter:
      return fmt::format(" ({}{}{}, {} x {}{})", record.weighted ? "weighted " : "", lockstep::name_of(record.op),
                         record.unit == 1 ? "" : fmt::format(" in units of {}", record.unit), record.count,
                         lockstep::name_of(record.dtype), record.kind == OpKind::all_reduce ? "" : " each");
    case OpKind::reduce:
      return fmt::format(" ({} to rank {}, {} x {})", lockstep::name_of(record.op), record.root, record.count,
                         lockstep::name_of(record.dtype));
    case OpKind::broadcast:
    case OpKind::scatter:
    case OpKind::gather:
      return fmt::format(" ({} rank {}, {} x {})", record.kind == OpKind::gather ? "to" : "from", record.root,
                         record.count, lockstep::name_of(record.dtype));
    case OpKind::all_gather:
    case OpKind::all_to_all: return fmt::format(" ({} x {} each)", record.count, lockstep::name_of(record.dtype));
  }
  return {};
}

}  // namespace

std::string describe(const OpRecord& record) { return fmt::format("{}{}", name_of(record.kind), details(record)); }

std::string describe(const OpRecord& record, std::uint64_t sequence) {
  return fmt::format("{} {}{}", name_of(record.kind), sequence, details(record));
}

std::string describe_mismatch(std::uint64_t sequence, const std::string& who, const OpRecord& own,
                              const std::string& other_who, const OpRecord& other) {
  // A note is the library's own as a rule.
  const bool differs_in_note = describe(own) == describe(other);
  const auto called = [differs_in_note](const OpRecord& record) {
    return describe(record) + (differs_in_note ? fmt::format(" with a note of '{}'", describe(record.note)) : "");
  };
  return fmt::format(
      "collective {}: {} called {}, but {} called {}; every rank must call the same operations in the same order with "
      "equal sizes and types",
      sequence, who, called(own), other_who, called(other));
}

std::string describe_too_heavy(const OpRecord& record, std::uint64_t sequence, const std::string& weights) {
  return fmt::format(
      "{}: the weights add up to more than 2^63 - 1: {}; a weight is a number of samples or of loss terms",
      describe(record, sequence), weights);
}

std::string P2pOp::describe() const {
  return fmt::format("{} of {} x {} {} rank {} with tag {}", is_send ? "send" : "recv", buffer.count,
                     name_of(buffer.dtype), is_send ? "to" : "from", peer, tag);
}

std::string describe_mismatch(const P2pOp& recv, const std::string& who, const std::string& sender, std::int64_t count,
                              DType dtype) {
  return fmt::format("{} called {}, but {} sent {} x {}; both sides must give one size and type", who, recv.describe(),
                     sender, count, name_of(dtype));
}

}  // namespace lockstep::comm
