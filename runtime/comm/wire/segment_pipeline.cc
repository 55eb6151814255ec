// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/wire/segment_pipeline.h"

#include <algorithm>
#include <utility>

#include "runtime/comm/wire/all_gather_steps.h"
#include "runtime/comm/wire/all_reduce_steps.h"
#include "runtime/comm/wire/broadcast_steps.h"
#include "runtime/comm/wire/reduce_scatter_steps.h"

namespace lockstep::wire {
namespace {

using comm::CollectiveArgs;
using comm::OpKind;

Hosts each_alone(int rank, int size) {
  Hosts hosts;
  for (int r = 0; r < size; ++r) hosts.ranks.push_back({r});
  hosts.host = static_cast<std::size_t>(rank);
  return hosts;
}

}  // namespace

SegmentPipeline::SegmentPipeline(const Hosts& hosts, int rank, int size, HostMemory* memory, SegmentCounts* counts,
                                 Wire& wire)
    : hosts_(memory != nullptr ? hosts : each_alone(rank, size)),
      memory_(memory),
      counts_(counts),
      wire_(wire),
      scratch_(kSegmentDepth) {}

bool SegmentPipeline::serves(const CollectiveArgs& args) const {
  switch (args.record.kind) {
    case OpKind::all_reduce: return true;
    case OpKind::reduce:
    case OpKind::broadcast: return memory_ != nullptr;
    case OpKind::all_gather:
    case OpKind::reduce_scatter: return memory_ != nullptr && SegmentSteps::has_room_for_rows(args, hosts_);
    default: return false;
  }
}

void SegmentPipeline::add(const CollectiveArgs& args, const Arrivals& arrivals, std::function<void()> on_done) {
  const SegmentSteps::StepContext context{hosts_, memory_, wire_};
  std::unique_ptr<SegmentSteps> steps;
  switch (args.record.kind) {
    case OpKind::broadcast: steps = std::make_unique<BroadcastSteps>(args, context); break;
    case OpKind::all_gather: steps = std::make_unique<AllGatherSteps>(args, context); break;
    case OpKind::reduce_scatter: steps = std::make_unique<ReduceScatterSteps>(args, context, scratch_); break;
    default: steps = std::make_unique<AllReduceSteps>(args, context, arrivals, scratch_);
  }
  collectives_.push_back({.args = args, .steps = std::move(steps), .on_done = {std::move(on_done)}});
}

void SegmentPipeline::after_all(std::function<void()> call) {
  if (empty()) return call();
  collectives_.back().on_done.push_back(std::move(call));
}

bool SegmentPipeline::step() {
  bool older_are_finished = true;
  for (UnderWay& one : segments_) {
    if (advance(one, older_are_finished)) return true;
    older_are_finished = one.phase == Phase::wait_for_host;
  }
  return begin_segment();
}

bool SegmentPipeline::begin_segment() {
  if (segments_.size() == kSegmentDepth) return false;
  const auto next = std::find_if(collectives_.begin(), collectives_.end(),
                                 [](const Collective& one) { return one.begun < one.args.count(); });
  if (next == collectives_.end()) return false;
  const std::size_t length = std::min(next->steps->most_elements(), next->args.count() - next->begun);
  segments_.push_back({.segment = {.number = ++last_, .chunk = {next->begun, length}}, .steps = *next->steps});
  next->begun += length;
  segments_.back().is_last = next->begun == next->args.count();
  note_oldest();
  next->steps->begin(segments_.back().segment);
  return true;
}

bool SegmentPipeline::advance(UnderWay& one, bool older_are_finished) {
  Segment& segment = one.segment;
  const Route route = one.steps.route();
  switch (one.phase) {
    case Phase::fill:
      if (route == Route::windows) {
        one.steps.fill(segment);
        counts_->fill(segment.number);
      }
      one.phase = segment.range.length > 0 ? Phase::send : Phase::wait_for_older;
      return true;
    case Phase::send:
      if (route == Route::windows && !counts_->all_filled(segment.number)) return false;
      one.steps.send(segment);
      one.phase = Phase::exchange_results;
      return true;
    case Phase::exchange_results:
      if (!are_through(segment.transfers)) return false;
      one.steps.exchange_results(segment);
      one.phase = Phase::broadcast_to_host;
      return true;
    case Phase::broadcast_to_host:
      if (!are_through(segment.transfers)) return false;
      one.steps.broadcast_to_host(segment);
      one.phase = Phase::wait_for_older;
      return true;
    case Phase::wait_for_older:
      // SegmentCounts::finish() marks a segment and all older segments as finished, so the older segments must be
      // finished first.
      if (!older_are_finished) return false;
      if (route != Route::alone && hosts_.local < hosts_.rails) counts_->finish(segment.number);
      one.phase = Phase::wait_for_host;
      return true;
    case Phase::wait_for_host:
      if (&one != &segments_.front()) return false;
      if (route != Route::alone && !counts_->all_finished(segment.number)) return false;
      end_segment();
      return true;
  }
  return false;
}

void SegmentPipeline::end_segment() {
  const UnderWay& one = segments_.front();
  if (one.steps.route() == Route::windows) one.steps.copy_out(one.segment);
  const bool is_last = one.is_last;
  segments_.pop_front();
  note_oldest();
  if (!is_last) return;
  // Move on_done out of the collective, because the collective must be destroyed before the program hears that the
  // collective is done.
  const std::vector<std::function<void()>> on_done = std::move(collectives_.front().on_done);
  collectives_.pop_front();
  for (const auto& call : on_done) call();
}

void SegmentPipeline::note_oldest() {
  const UnderWay* const oldest = segments_.empty() ? nullptr : &segments_.front();
  const Route route = oldest == nullptr ? Route::alone : oldest->steps.route();
  oldest_in_windows_.store(route == Route::windows);
  oldest_in_memory_.store(route == Route::alone ? 0 : oldest->segment.number);
}

std::vector<std::size_t> SegmentPipeline::awaited_neighbours() const {
  const std::uint64_t number = oldest_in_memory_.load();
  return number == 0 ? std::vector<std::size_t>() : counts_->awaited(number, oldest_in_windows_.load());
}

bool SegmentPipeline::are_through(std::vector<Transfer>& transfers) {
  while (!transfers.empty() && wire_.done(transfers.back())) transfers.pop_back();
  return transfers.empty();
}

}  // namespace lockstep::wire
