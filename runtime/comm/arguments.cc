// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/arguments.h"

#include <fmt/format.h>

#include <cstdint>
#include <limits>

#include "lockstep/base/error.h"
#include "runtime/comm/group_internals.h"

namespace lockstep::comm {
namespace {

[[noreturn]] void refuse(const ProcessGroup& group, std::string_view operation, const std::string& what) {
  const std::string where = group.name().empty() ? std::string() : fmt::format(", group '{}'", group.name());
  throw InvalidArgument(fmt::format("{} on rank {} of {} ({}{}): {}", operation, group.rank(), group.size(),
                                    group.backend(), where, what));
}

bool overlap(const ConstBufferView& a, const ConstBufferView& b) {
  if (a.bytes() == 0 || b.bytes() == 0) return false;
  const auto* a_begin = static_cast<const std::byte*>(a.data);
  const auto* b_begin = static_cast<const std::byte*>(b.data);
  return a_begin < b_begin + b.bytes() && b_begin < a_begin + a.bytes();
}

void check_alike(const ProcessGroup& group, std::string_view operation, const ConstBufferView& a,
                 const ConstBufferView& b) {
  if (a.device != b.device) {
    refuse(
        group, operation,
        fmt::format("one buffer is on {}, the other on {}; both must be in one place", a.device.str(), b.device.str()));
  }
  if (a.dtype == b.dtype) return;
  refuse(group, operation,
         fmt::format("one buffer is {}, the other {}; both must have one dtype", name_of(a.dtype), name_of(b.dtype)));
}

}  // namespace

void check_buffer(const ProcessGroup& group, std::string_view operation, const ConstBufferView& buffer) {
  if (buffer.count < 0) refuse(group, operation, fmt::format("a buffer of {} elements; give 0 or more", buffer.count));
  if (buffer.count > std::numeric_limits<std::int64_t>::max() / static_cast<std::int64_t>(size_of(buffer.dtype))) {
    refuse(group, operation,
           fmt::format("a buffer of {} elements of {} bytes; no memory holds them, give the elements that there are",
                       buffer.count, size_of(buffer.dtype)));
  }
  if (buffer.data == nullptr && buffer.count > 0) {
    refuse(group, operation,
           fmt::format("a buffer of {} elements at address null; give memory that holds them", buffer.count));
  }
  if (!group.internals().takes(buffer.device)) {
    refuse(group, operation,
           fmt::format("a buffer on {}, but the group computes on {}; copy it there first", buffer.device.str(),
                       group.device().str()));
  }
  if (reinterpret_cast<std::uintptr_t>(buffer.data) % size_of(buffer.dtype) != 0) {
    refuse(group, operation,
           fmt::format("a {} buffer whose address is not a multiple of {}; align it", name_of(buffer.dtype),
                       size_of(buffer.dtype)));
  }
}

void check_rank(const ProcessGroup& group, std::string_view operation, std::string_view role, int rank) {
  if (rank >= 0 && rank < group.size()) return;
  refuse(group, operation, fmt::format("{} {} is not a rank of this group; use 0 to {}", role, rank, group.size() - 1));
}

void check_parts(const ProcessGroup& group, std::string_view operation, const ConstBufferView& part,
                 const ConstBufferView& whole, int in_place) {
  check_buffer(group, operation, part);
  check_buffer(group, operation, whole);
  check_alike(group, operation, part, whole);
  if (whole.count % group.size() != 0 || whole.count / group.size() != part.count) {
    refuse(group, operation,
           fmt::format("buffers of {} and {} elements; the larger must hold {} parts of {}", part.count, whole.count,
                       group.size(), part.count));
  }
  if (!overlap(part, whole)) return;
  const auto offset = static_cast<std::ptrdiff_t>(part.bytes()) * in_place;
  if (in_place >= 0 && part.data == static_cast<const std::byte*>(whole.data) + offset) return;
  refuse(group, operation,
         in_place >= 0 ? fmt::format("the buffers overlap; keep them apart, or let the small one be "
                                     "part {} of the large one (in place)",
                                     in_place)
                       : "the buffers overlap; keep them apart");
}

void check_exchange(const ProcessGroup& group, const ConstBufferView& input, const ConstBufferView& output) {
  constexpr std::string_view kOperation = "all_to_all";
  check_buffer(group, kOperation, input);
  check_buffer(group, kOperation, output);
  check_alike(group, kOperation, input, output);
  if (input.count != output.count || input.count % group.size() != 0) {
    refuse(group, kOperation,
           fmt::format("buffers of {} and {} elements; both must hold {} equal parts", input.count, output.count,
                       group.size()));
  }
  if (overlap(input, output)) refuse(group, kOperation, "the buffers overlap; keep them apart");
}

void check_weight(const ProcessGroup& group, std::string_view operation, const ConstBufferView& buffer,
                  const ReductionOptions& options) {
  if (options.unit < 1 || (options.unit != 1 && !options.weight)) {
    refuse(group, operation,
           fmt::format("unit {} {} a weight; a unit goes with a weight, and is at least 1", options.unit,
                       options.weight ? "of" : "without"));
  }
  if (options.unit != 1 && group.device().kind != DeviceKind::cpu) {
    refuse(group, operation,
           fmt::format("unit {} on {}; units of weights are for groups on the CPU, give 1", options.unit,
                       group.device().str()));
  }
  if ((options.zero_if_weightless || options.total_on_device != nullptr) &&
      (!options.weight || group.device().kind == DeviceKind::cpu)) {
    refuse(group, operation,
           fmt::format("{} {} on {}; it goes with a weight, in groups on a device",
                       options.zero_if_weightless ? "zero_if_weightless" : "total_on_device",
                       options.weight ? "with a weight" : "without one", group.device().str()));
  }
  if (!options.weight) return;
  if (options.op != ReduceOp::sum) {
    refuse(group, operation, fmt::format("a weight with op {}; weights go with sum only", name_of(options.op)));
  }
  if (*options.weight < 0) {
    refuse(group, operation, fmt::format("weight {}; give 0 or more", *options.weight));
  }
  const bool floating = buffer.dtype == DType::f32 || buffer.dtype == DType::f64 || buffer.dtype == DType::bf16 ||
                        buffer.dtype == DType::f16;
  if (!floating) {
    refuse(
        group, operation,
        fmt::format("a weight with {} elements; a weighted mean needs a floating-point dtype", name_of(buffer.dtype)));
  }
}

void check_note(const ProcessGroup& group, std::string_view operation, std::span<const NoteField> note) {
  if (note.size() > kMostNoteFields) {
    refuse(group, operation,
           fmt::format("a note of {} fields; at most {} ride along, send more as data", note.size(), kMostNoteFields));
  }
  for (std::size_t i = 0; i < note.size(); ++i) {
    if (note[i].op >= NoteOp::sum && note[i].op <= NoteOp::equal) continue;
    refuse(
        group, operation,
        fmt::format("field {} of the note has operation {}; give sum, any or equal", i, static_cast<int>(note[i].op)));
  }
}

void check_tag(const ProcessGroup& group, std::string_view operation, int tag) {
  if (tag < 0) refuse(group, operation, fmt::format("tag {}; give 0 or more", tag));
}

}  // namespace lockstep::comm
