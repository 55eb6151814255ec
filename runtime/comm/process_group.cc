// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/process_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/comm/coordinated_stop.h"
#include "runtime/comm/group_internals.h"

namespace lockstep {

void WorkState::wait_on([[maybe_unused]] StreamView stream, const Deadline& deadline) {
  if (!poll()) wait(deadline);
}

comm::GroupInternals::GroupInternals() : coordinated_stop_(std::make_shared<CoordinatedStop>()) {}

void ProcessGroup::set_stream(StreamView stream) {
  if (stream == StreamView{device(), nullptr}) return;
  throw InvalidArgument(
      fmt::format("set_stream on rank {} of {} ({}): the stream is of {}, but the group computes on {}, which has only "
                  "its default stream; don't set a stream for this group",
                  rank(), size(), backend(), stream.device.str(), device().str()));
}

std::string_view name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return "sum";
    case ReduceOp::avg: return "avg";
    case ReduceOp::min: return "min";
    case ReduceOp::max: return "max";
    case ReduceOp::product: return "product";
  }
  return "?";
}

std::vector<std::string> all_gather_text(ProcessGroup& group, const std::string& text) {
  const auto ranks = static_cast<std::size_t>(group.size());
  std::int64_t own_bytes = static_cast<std::int64_t>(text.size());
  std::vector<std::int64_t> all_bytes(ranks);
  group.all_gather(BufferView(std::span(&own_bytes, 1)), BufferView(std::span(all_bytes))).wait();

  // Every rank sends as much as the longest text: one collective, and texts are short.
  const auto longest = static_cast<std::size_t>(*std::max_element(all_bytes.begin(), all_bytes.end()));
  std::vector<std::uint8_t> own(longest);
  std::copy(text.begin(), text.end(), own.begin());
  std::vector<std::uint8_t> all(longest * ranks);
  group.all_gather(BufferView(std::span(own)), BufferView(std::span(all))).wait();

  std::vector<std::string> result;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(rank * longest);
    result.emplace_back(begin, begin + all_bytes[rank]);
  }
  return result;
}

void barrier_before_throw(ProcessGroup& group) noexcept {
  try {
    group.barrier().wait();
  } catch (const std::exception& error) {  // what has been told goes first
    log_debug("a rank did not stay until all had been told of a failure: {}", error.what());
  }
}

}  // namespace lockstep
