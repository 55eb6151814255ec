// SPDX-License-Identifier: Apache-2.0
// Auditor finds a rank whose processor computes wrong values. In an audit, each rank also computes a fixed micro-batch
// of another rank (data/sampler.h), and the ranks compare digests of the results. Two ranks with different digests
// contradict each other, and compute the micro-batch again. A rank whose second result differs from its first result
// had a transient fault. If both ranks repeat their results, the rank that also contradicts a third rank is wrong. If
// neither rank contradicts a third rank, the Auditor can't tell which of the two ranks is wrong.
//
// If several ranks get other results when they compute again, the program itself computes something else each time, and
// no rank is wrong.
//
// The Auditor compares only ranks with equal processors and libraries, because other processors may compute other bits.
//
// Threads: one thread at a time.
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
#include "lockstep/ddp/reproducible.h"
#include "runtime/base/internal_api.h"

namespace lockstep {

class LOCKSTEP_INTERNAL_API Auditor {
 public:
  // Computed describes a rank's computation of a fixed micro-batch. `digests` has a digest for each name that was given
  // to the Auditor; the digest is 0 if the micro-batch computed no such tensor.
  struct Computed {
    int micro_batch = -1;
    std::vector<std::uint64_t> digests = {};
    int first_core = -1;  // the core on which the computation began
    int last_core = -1;   // the core on which the computation ended

    std::uint64_t digest() const;
  };
  // Turn says which rank computes which micro-batch in an audit.
  struct Turn {
    std::int64_t audit = 0;
    std::vector<int> audited = {};  // by rank: the micro-batch of another rank that the rank computes
    std::vector<int> owners = {};   // by rank: the rank to which the micro-batch in `audited` belongs
    int own = -1;                   // the micro-batch of this rank that another rank computes
  };
  // A Contradiction says that rank `auditor` computed a micro-batch of rank `owner` with another result than the owner.
  struct Contradiction {
    int owner = -1;
    int auditor = -1;
  };

  // `names` are the names of the digests, equal on all ranks. `libraries` describes the software that computes, such as
  // the versions of libraries. `first_step` is the first step of
  // this run, or audited_step() of an earlier run that this run continues.
  Auditor(std::shared_ptr<ProcessGroup> group, const Reproducible& reproducible, std::vector<std::string> names,
          std::string libraries, std::int64_t first_step);

  std::size_t names() const { return names_.size(); }
  // Returns the last step whose initial weights are sound as far as audits tell: the earliest of the ranks' last audits
  // without a contradiction, or the first step of this run if some rank had no such audit.
  std::int64_t audited_step() const { return *std::ranges::min_element(last_clean_); }
  // Makes judge() call `action` on every rank before judge() throws. States of steps after `sound_step` may be wrong.
  void before_blame(std::function<void(std::int64_t sound_step)> action) { before_blame_ = std::move(action); }
  // REQUIRES: `audit` is above 0.
  Turn turn(std::int64_t audit, int ranks_per_host) const;
  // Compares the ranks' digests. Returns the contradictions, which are equal on all ranks. Throws Mismatch on all ranks
  // if the weights differ. Collective and blocking.
  std::vector<Contradiction> compare(const Turn& turn, std::span<const NamedBuffer> weights, const Computed& own,
                                     const Computed& audited, std::int64_t step);
  // Decides which ranks are wrong. Call judge() on all ranks after compare() has returned contradictions and the
  // contradicting ranks have computed their micro-batches again. Returns true if a gradient of the step is wrong, so
  // that the step must be computed again. Throws Mismatch on all ranks if a rank is permanently wrong, or if two ranks
  // contradict each other permanently. Collective and blocking.
  bool judge(const Turn& turn, std::span<const Contradiction> contradictions, const Computed& own,
             const Computed& audited, const Computed& own_again, const Computed& audited_again, std::int64_t step);

 private:
  struct Reports;
  std::string describe(const Turn& turn, const Contradiction& it, const Reports& reports) const;
  std::string describe_rank(int rank) const;
  void find_kinds();
  // Throws Mismatch on all ranks, because one of `ranks` computes wrong values. The error's cause names the rank if
  // `ranks` has one element.
  [[noreturn]] void blame(const std::set<int>& ranks, const std::string& text, std::int64_t step);

  std::shared_ptr<ProcessGroup> group_;
  Reproducible reproducible_;
  std::vector<std::string> names_;
  std::string libraries_;
  // By rank: a hash of processor and libraries. Empty before the first comparison.
  std::vector<std::uint64_t> kinds_;
  // By rank: the step of its last audit without a contradiction, or the first step of this run.
  std::vector<std::int64_t> last_clean_;
  std::vector<int> faults_;  // by rank: the number of transient faults
  std::function<void(std::int64_t)> before_blame_;
};

}  // namespace lockstep
