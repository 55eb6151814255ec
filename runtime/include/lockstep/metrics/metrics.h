// SPDX-License-Identifier: Apache-2.0
// Metrics computes sums and means over all ranks, in one collective.
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
// A rank adds the values of its own samples. With each sample on one rank (data::chunk, or a sampler that pads nothing)
// the result is that of one process: all values are summed exactly and the sum is rounded once, so it depends neither
// on the order nor on which rank added what. A NaN that a rank adds shows in the result, unless its count is 0: the
// mean of no rows.
//
// A rank's request to stop travels with result() (comm/stop.h). If a rank left an evaluation because of it, all ranks
// have agreed to stop afterwards, and the results count the samples that the ranks have seen.
//
// Threads: the group's. Failure: the group's errors.
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
  // The mean; NaN if nothing was counted.
  double mean() const;
};

// The result of Metrics::result(): values on this rank, without any communication.
class LOCKSTEP_API MetricResults {
 public:
  explicit MetricResults(std::vector<Metric> all) : all_(std::move(all)) {}

  // All metrics, by name.
  const std::vector<Metric>& all() const { return all_; }
  // The metric of a name. InvalidArgument, which lists the names, for a name that no rank has added to. If no rank has
  // added anything, every name has a count of 0.
  const Metric& operator[](std::string_view name) const;
  double mean(std::string_view name) const { return (*this)[name].mean(); }
  // The means as text: "accuracy 0.981, loss 0.0623".
  std::string str() const;

 private:
  std::vector<Metric> all_;
};

class LOCKSTEP_API Metrics {
 public:
  // `group` outlives this object.
  explicit Metrics(ProcessGroup& group) : group_(&group) {}

  // Adds to this rank's part of `name`: a sum, and the number of values in it. InvalidArgument for a count below 0, and
  // for an empty name.
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

  // Collective. Returns what all ranks have added so far. Ranks add to the same names, or, as a rank without a row
  // does, to none: otherwise Mismatch, on every rank, with the names, and the group stays usable.
  MetricResults result();
  // Returns the mean of one name. Collective too, so use result() for several.
  double result(std::string_view name) { return result().mean(name); }

  // Forgets all values of this rank: for the next epoch.
  void reset() { parts_.clear(); }

 private:
  // One rank's part of one name, as it travels. The sum is a fixed-point number with room for any double's bits.
  struct Part {
    std::array<std::int64_t, 70> digits = {};  // of 32 bits, the lowest first; the last one has the sign
    std::int64_t since_carry = 0;  // additions since carry(), which may have left more than 32 bits in a digit
    double not_finite = 0;         // the sum of infinities and NaNs
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
  // The names of all ranks, after the ranks have seen that their names differ; or Mismatch.
  std::vector<std::string> names_of_all() const;

  ProcessGroup* group_;
  std::map<std::string, Part, std::less<>> parts_;
};

// Logs a number by name and step for the views of a run: progress bar, `lockstep top`, Prometheus, and the report with
// its TensorBoard events (docs/OBSERVE.md).
//
//   lockstep::log_scalar("val/loss", results.mean("loss"), *group);   // any rank, or several
//
// The launcher shows the mean over the ranks that logged a name in a step. A rank that logs nothing changes nothing.
// The library logs "loss" (of the global batch), "lr" (optim::Optimizer::step) and "grad_norm" (optim::clip_grad_norm).
//
// Not collective: the call waits for no other rank, device or launcher. It costs a lock and some words of memory.
// Threads: any.

// `step` is by default the number of steps that the group's training has done: after the third backward it is 3. After
// Snapshots::restore() it includes the steps of earlier runs. DistributedDataParallel::set_steps() doesn't change it,
// because a group may have several networks: a program that restores by itself passes ddp.steps(). A value that is
// logged again for a step replaces the earlier one; a restarted job replaces the values of the steps that it repeats.
// NaN and infinity are ordinary values.
//
// `name` is 1 to 63 bytes of UTF-8 without control characters; "/" groups names in TensorBoard. A rank keeps 64 names;
// it drops values of further names with a warning, the 1st, 2nd, 4th, 8th ... time. The report has 256 to 512 points
// per start for a name that is logged often.
//
// InvalidArgument for another name, and for a step below 0 or above 2^53.
LOCKSTEP_API void log_scalar(std::string_view name, double value, const ProcessGroup& group,
                             std::optional<std::int64_t> step = std::nullopt);

}  // namespace lockstep
