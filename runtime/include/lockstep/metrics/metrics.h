// SPDX-License-Identifier: Apache-2.0
// Sums and means over all ranks, in one collective.
//
//   lockstep::Metrics metrics(*group);
//   for (const auto& batch : batches_of_this_rank) {
//     ...
//     metrics.add("accuracy", right, rows);                   // right of rows samples
//     metrics.add("loss", loss_mean * rows, rows);            // a sum over rows, and their number
//   }
//   const lockstep::MetricResults results = metrics.result();  // collective: on every rank, with the same bits
//   if (group->rank() == 0) std::cout << results.str() << "\n"; // accuracy 0.981, loss 0.0623
//
// A rank adds what it has seen itself: with each sample on one rank (data::chunk, or a sampler that pads nothing) the
// result is that of one process. All that is added is summed exactly and the sum rounded once, so that it depends
// neither on the order nor on which rank added what. A NaN that a rank adds shows in the result, but for one with a
// count of 0: the mean of no rows.
//
// A rank's request to stop rides along (comm/stop.h): behind an evaluation that a rank has left for it, all ranks have
// agreed to stop, and the results count what they have seen.
//
// Threads: the group's. Failure: what the group throws.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

// The metric of one name, over all ranks.
struct LOCKSTEP_API Metric {
  std::string name;
  double sum = 0;
  std::int64_t count = 0;
  // NaN if nothing was counted.
  double mean() const;
};

// What Metrics::result() found: values, which talk to nobody.
class LOCKSTEP_API MetricResults {
 public:
  explicit MetricResults(std::vector<Metric> all) : all_(std::move(all)) {}

  // By name.
  const std::vector<Metric>& all() const { return all_; }
  // InvalidArgument for a name that nobody has added to, with those that there are. If there is none: a count of 0.
  const Metric& operator[](std::string_view name) const;
  double mean(std::string_view name) const { return (*this)[name].mean(); }
  // "accuracy 0.981, loss 0.0623": the means.
  std::string str() const;

 private:
  std::vector<Metric> all_;
};

class LOCKSTEP_API Metrics {
 public:
  // The group outlives this object.
  explicit Metrics(ProcessGroup& group) : group_(&group) {}

  // Adds to this rank's part of `name`: a sum, and what it is the sum of. InvalidArgument for a count below 0, and an
  // empty name.
  void add(std::string_view name, std::integral auto sum, std::int64_t count = 1) {
    if constexpr (sizeof(sum) == 8 && !std::is_signed_v<decltype(sum)>) {
      if (sum > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        return add_real(name, static_cast<double>(sum), count);
      }
    }
    add_whole(name, static_cast<std::int64_t>(sum), count);
  }
  void add(std::string_view name, std::floating_point auto sum, std::int64_t count = 1) {
    add_real(name, static_cast<double>(sum), count);
  }

  // Collective: what all ranks have added so far. Ranks add to the same names, or to none, as one without a row does:
  // else Mismatch, on every rank, with the names, and the group stays usable.
  MetricResults result();
  // The mean of one name; collective too, so ask result() for several.
  double result(std::string_view name) { return result().mean(name); }

  // Forgets all that was added, on this rank: for the next epoch.
  void reset() { parts_.clear(); }

 private:
  // One rank's part of one name, as it travels. The sum is a number in fixed point with room for any double's bits.
  struct Part {
    std::array<std::int64_t, 70> digits = {};  // of 32 bits, the lowest first; the last one carries the sign
    std::int64_t since_carry = 0;              // additions that may have left more than 32 bits in a digit
    double not_finite = 0;                     // the sum of infinities and NaNs
    std::int64_t count = 0;

    void add(std::int64_t value) { add(value, 0); }
    void add(double value);
    void add(const Part& other);
    void add(std::int64_t mantissa, int exponent);  // mantissa * 2^exponent
    void carry();                                   // leaves 32 bits in each digit but the last
    double sum() const;                             // the nearest double
  };

  void add_whole(std::string_view name, std::int64_t sum, std::int64_t count);
  void add_real(std::string_view name, double sum, std::int64_t count);
  Part& part_of(std::string_view name, std::int64_t count);
  // After the ranks have seen that their names differ: all of them, or Mismatch.
  std::vector<std::string> names_of_all() const;

  ProcessGroup* group_;
  std::map<std::string, Part, std::less<>> parts_;
};

// A number by name and step, for the views of a run: progress bar, `lockstep top`, Prometheus, and the report with its
// TensorBoard events (docs/OBSERVE.md).
//
//   lockstep::log_scalar(*group, "val/loss", results.mean("loss"));   // any rank, or several
//
// The launcher shows the mean over the ranks that logged a name in a step. A rank that logs nothing changes nothing.
// The library logs "loss", of the global batch, "lr" (optim::Optimizer::step) and "grad_norm" (optim::clip_grad_norm).
//
// Not collective: nobody waits for another rank, a device or the launcher. Costs a lock and some words of memory.
// Threads: any.

// `step` is by default the number of steps that the group's training has done: after the third backward it is 3. Those
// of earlier runs are included after Snapshots::restore(). DistributedDataParallel::set_steps() doesn't change the
// count, since a group may have several networks: a program that restores by itself gives ddp.steps(). A value that is
// logged again for a step replaces the one before; a job that starts again replaces those of the steps that it runs
// again. NaN and infinity are values like others.
//
// `name`: 1 to 63 bytes of UTF-8 without control characters, "/" groups names in TensorBoard. A rank keeps 64 names;
// values of others are dropped with a warning, the 1st, 2nd, 4th, 8th ... time. Of a name that has been logged often
// the report has 256 to 512 points for each start.
//
// InvalidArgument for another name, and for a step below 0 or above 2^53.
LOCKSTEP_API void log_scalar(const ProcessGroup& group, std::string_view name, double value,
                             std::optional<std::int64_t> step = std::nullopt);

}  // namespace lockstep
