// SPDX-License-Identifier: Apache-2.0
#include "runtime/ddp/equality/divergence_check.h"

#include <fmt/format.h>

#include <utility>

#include "runtime/base/logging.h"
#include "runtime/comm/disagreement.h"
#include "runtime/comm/group_internals.h"
#include "runtime/comm/roster_cause.h"
#include "runtime/trace/process_trace.h"

namespace lockstep {
namespace {

// The number of times that compare() must find the replicas equal before compare() logs a warning.
constexpr int kManyComparisons = 20;

}  // namespace

DivergenceCheck::DivergenceCheck(std::shared_ptr<ProcessGroup> group, std::int64_t every, Replica replica)
    : group_(std::move(group)),
      every_(every),
      replica_(std::move(replica)),
      data_(group_),
      equal_versions_(replica_.versions()) {
  if (every_ < 0) {
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: compare_every is {}; give a number of steps, or 0 for never", every_));
  }
}

StepNote DivergenceCheck::note(std::int64_t step) {
  if (group_->size() == 1) return {};
  StepNote note{.versions = static_cast<std::int64_t>(replica_.versions() - equal_versions_),
                .data = data_.digest(step)};
  if (wants_digest(step)) {
    const Replica::State state = replica_.state();
    note.digest = static_cast<std::int64_t>(hash_replica(state.buffers, group_->stream()));
  }
  return note;
}

// judge() must decide alike on all ranks whether to compare replicas. Therefore judge() uses only `noted`, which is
// equal on all ranks, and the results of earlier calls of judge().
void DivergenceCheck::judge(std::int64_t step, const NotedStep& noted) {
  if (group_->size() == 1) return;
  if (noted.step < judged_) return;
  judged_ = noted.step + 1;
  data_.judge(noted);
  if (noted.of_all.versions == 0 || noted.of_all.digest == 0) return compare(step, noted.step);
  if (wants_digest(noted.step)) see_equal(noted.step);
}

void DivergenceCheck::compare(std::int64_t step, std::int64_t seen_in) {
  const Replica::State state = replica_.state();
  const ReplicaComparison comparison = compare_replicas(*group_, state.buffers);
  // On a device the StepNotes of the steps up to `step` may not have arrived yet. judge() skips the StepNotes of the
  // steps up to `step`, because the ranks wrote these StepNotes before this comparison.
  judged_ = step + 1;
  if (!comparison.are_equal()) throw_mismatch(seen_in, comparison);
  if (++equal_comparisons_ == kManyComparisons) {
    log_warn(
        "replica check: all parameters were compared {} times by step {}, and were equal. The comparisons are needed "
        "because the ranks write their parameters different numbers of times, and each comparison is slow; look "
        "whether only one rank writes parameters in every step",
        equal_comparisons_, seen_in);
  }
  equal_versions_ = replica_.versions();
  see_equal(step);
}

void DivergenceCheck::see_equal(std::int64_t step) {
  equal_in_ = step;
  trace::keep_equal(step);
}

void DivergenceCheck::throw_mismatch(std::int64_t seen_in, const ReplicaComparison& comparison) const {
  const std::string when = equal_in_ < 0 ? fmt::format("before step {}", seen_in)
                                         : fmt::format("between step {} and step {}", equal_in_, seen_in);
  // Name the rank that differs only if there are more than two replicas: with two replicas nobody knows which replica
  // is wrong.
  const int rank = group_->size() > 2 && comparison.ranks.size() == 1 ? comparison.ranks.front() : -1;
  trace::keep_finding({.kind = trace::FindingKind::apart,
                       .rank = comm::job_rank(group_->roster(), rank),
                       .step = seen_in,
                       .parameter = comparison.parameter});
  group_->internals().note_apart();
  comm::throw_disagreement(*group_, describe_divergence(comparison, fmt::format("; they came apart {}", when)), rank,
                           seen_in);
}

}  // namespace lockstep
