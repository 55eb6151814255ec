// SPDX-License-Identifier: Apache-2.0
// Auditor finds a rank whose processor computes wrong values. In an audit, each rank also computes a fixed micro-batch
// of another rank (data/sampler.h), the two ranks compare digests of what they computed, and ranks that contradict each
// other compute again. A rank that contradicts itself then had a transient fault. If both ranks repeat what they said,
// the one that also contradicts a third rank is wrong; if there is no such rank, nobody knows which of the two it is.
//
// Only ranks with equal processors and libraries are compared, because other processors may have other bits.
//
// Threads: one at a time.
// Failure: throws the errors of the group.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/replica_check.h"
#include "runtime/base/internal_api.h"

namespace lockstep {

class LOCKSTEP_INTERNAL_API Auditor {
 public:
  // What a rank computed for a fixed micro-batch: a digest for each of the names given to the Auditor, 0 for none.
  struct Computed {
    int micro_batch = -1;
    std::vector<std::uint64_t> digests = {};
    int first_core = -1;  // where it ran at the begin and at the end
    int last_core = -1;

    std::uint64_t digest() const;
  };
  // Who computes whose micro-batch in an audit.
  struct Turn {
    std::int64_t audit = 0;
    std::vector<int> audited = {};  // by rank: the micro-batch that it computes for another
    std::vector<int> owners = {};   // by rank: whose micro-batch that is
    int own = -1;                   // the micro-batch of this rank that another rank computes
  };
  // Rank `auditor` computed the micro-batch of rank `owner`, with another result.
  struct Contradiction {
    int owner = -1;
    int auditor = -1;
  };

  // `names` are those of the digests, equal on all ranks. `libraries` is a text about what computes, besides the
  // processor, such as versions. `first_step` is the first step of this run.
  Auditor(std::shared_ptr<ProcessGroup> group, int micro_batches, std::vector<std::string> names, std::string libraries,
          std::int64_t first_step);

  std::size_t names() const { return names_.size(); }
  // Returns the last step that began with weights to which no rank has contributed since its last clean audit, or the
  // first step of this run.
  std::int64_t audited_step() const { return *std::ranges::min_element(last_clean_); }
  // Makes judge() call `action` on every rank before it blames a rank. States of later steps than the argument may be
  // wrong.
  void before_blame(std::function<void(std::int64_t sound_step)> action) { before_blame_ = std::move(action); }
  // REQUIRES: `audit` is above 0.
  Turn turn(std::int64_t audit, int ranks_per_host) const;
  // Collective. Returns the contradictions, which are the same on all ranks. Throws Mismatch on all ranks if the
  // weights differ.
  std::vector<Contradiction> compare(const Turn& turn, std::span<const NamedBuffer> weights, const Computed& own,
                                     const Computed& audited, std::int64_t step);
  // Collective, after compare() has returned contradictions and the ranks in them have computed again. Returns whether
  // some rank's part in the gradients was wrong, so that the step must be computed again. Throws Mismatch on all ranks
  // if a rank is wrong for good, or if two ranks contradict each other for good.
  bool judge(const Turn& turn, std::span<const Contradiction> contradictions, const Computed& own,
             const Computed& audited, const Computed& own_again, const Computed& audited_again, std::int64_t step);

 private:
  struct Reports;
  std::string describe(const Turn& turn, const Contradiction& it, const Reports& reports) const;
  std::string describe_rank(int rank) const;
  void find_kinds();
  // Throws Mismatch on all ranks: one of `ranks` computes wrong values, the only one if it is one.
  [[noreturn]] void blame(const std::set<int>& ranks, const std::string& text, std::int64_t step);

  std::shared_ptr<ProcessGroup> group_;
  int micro_batches_;
  std::vector<std::string> names_;
  std::string libraries_;
  std::vector<std::uint64_t> kinds_;  // by rank; empty before the first comparison
  // By rank: the step of its last audit without a contradiction, or the first step of this run.
  std::vector<std::int64_t> last_clean_;
  std::vector<int> faults_;  // by rank: its transient faults
  std::function<void(std::int64_t)> before_blame_;
};

}  // namespace lockstep
