// SPDX-License-Identifier: Apache-2.0
// Metrics computes sums and means over all ranks, in one collective.
//
//   lockstep::Metrics metrics(*group);
//   for (const auto& batch : batches_of_this_rank) {
//     ...
//     metrics.add("accuracy", right, rows);                   // `right` of `rows` samples
//     metrics.add("loss", loss_mean * rows, rows);            // a sum over rows, and the number of rows
//   }
//   const lockstep::MetricResults results = metrics.result();  // collective: equal bits on every rank
//   if (group->rank() == 0) std::cout << results.str() << "\n"; // accuracy 0.981, loss 0.0623
//
// Each rank adds the values of its own samples. If each sample belongs to exactly one rank (as with data::chunk, or
// with a sampler that does not pad), the result equals the result of a single process. All values are summed exactly,
// and the sum is rounded once. The result of the sum thus depends neither on the order in which values are added nor on
// the ranks that add the values. A NaN that a rank adds makes the result NaN. A NaN that is added with count 0, such as
// the mean loss of a batch without rows, counts as 0.
//
// Metrics::result() also tells all ranks whether a rank was asked to stop (comm/stop.h). If a rank leaves an evaluation
// early because of a request to stop, all ranks agree to stop in their next call of Metrics::result(). The results of
// an evaluation that was stopped early count only the samples that the ranks evaluated before the stop.
//
// Threads: a Metrics object belongs to the thread that uses the group. Failure: result() throws the group's errors.
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

// Metric holds the sum and the number of the values that all ranks have added to the metric `name`.
struct LOCKSTEP_API Metric {
  std::string name;
  double sum = 0;
  std::int64_t count = 0;
  // Returns the mean, or NaN if the count is 0.
  double mean() const;
};

// MetricResults is the result of Metrics::result(). The functions of MetricResults read values on this rank, and do
// not communicate.
class LOCKSTEP_API MetricResults {
 public:
  explicit MetricResults(std::vector<Metric> all) : all_(std::move(all)) {}

  // Returns all metrics, sorted by name.
  const std::vector<Metric>& all() const { return all_; }
  // Returns the metric of a name. Throws InvalidArgument, which lists the known names, if no rank has added a value to
  // `name`. If no rank has added a value to any name, operator[] returns a metric with count 0 for every name.
  const Metric& operator[](std::string_view name) const;
  double mean(std::string_view name) const { return (*this)[name].mean(); }
  // Returns the means as text: "accuracy 0.981, loss 0.0623".
  std::string str() const;

 private:
  std::vector<Metric> all_;
};

class LOCKSTEP_API Metrics {
 public:
  // `group` outlives this object.
  explicit Metrics(ProcessGroup& group) : group_(&group) {}

  // Adds `sum`, which is the sum of `count` values, to this rank's part of the metric `name`. Throws InvalidArgument if
  // `count` is below 0, or if `name` is empty or has a line break.
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

  // Returns the sums and counts of all values that the ranks have added so far. The call is collective. All ranks that
  // have added values must have used the same set of names; a rank without rows may have added nothing. If the ranks'
  // names differ, every rank throws Mismatch, which lists the names, and the group stays usable.
  MetricResults result();
  // Returns the mean of one name. To read several names, call result() without a name, because each call of
  // result() is collective.
  double result(std::string_view name) { return result().mean(name); }

  // Forgets all values that this rank has added, for example before the next epoch.
  void reset() { parts_.clear(); }

 private:
  // Part is one rank's sum and count of the values of one metric, in the format in which ranks send sums and counts to
  // each other. Part stores the sum as a fixed-point number with room for the bits of any double.
  struct Part {
    std::array<std::int64_t, 70> digits = {};  // digits of 32 bits, the lowest first; the last digit has the sign
    std::int64_t since_carry = 0;  // number of additions since carry(), which may have made digits longer than 32 bits
    double not_finite = 0;         // the sum of infinities and NaNs
    std::int64_t count = 0;

    void add(std::int64_t value) { add(value, 0); }
    void add(double value);
    void add(const Part& other);
    void add(std::int64_t mantissa, int exponent);  // mantissa * 2^exponent
    void carry();                                   // leaves 32 bits in each digit except the last
    double sum() const;                             // returns the nearest double
  };

  void add_whole(std::string_view name, std::int64_t sum, std::int64_t count);
  void add_real(std::string_view name, double sum, std::int64_t count);
  Part& part_of(std::string_view name, std::int64_t count);
  // Returns the names to which the ranks have added values. Throws Mismatch if two ranks have added values to different
  // sets of names.
  std::vector<std::string> names_of_all() const;

  ProcessGroup* group_;
  std::map<std::string, Part, std::less<>> parts_;
};

// log_scalar() logs a number under a name and a step. The progress bar, `lockstep top`, Prometheus and the report with
// its TensorBoard events show the logged numbers (docs/OBSERVE.md).
//
//   lockstep::log_scalar("val/loss", results.mean("loss"), *group);   // any rank, or several
//
// For each name and step the launcher shows the mean of the numbers that ranks have logged. A rank that logs no number
// for a name and a step does not change their mean. The library itself logs "loss" (of the global batch), "lr"
// (optim::Optimizer::step) and "grad_norm" (optim::clip_grad_norm).
//
// A call of log_scalar() is not collective, and waits for no other rank, device or launcher. A call of log_scalar()
// costs a lock and a few words of memory.
// Threads: any thread may call log_scalar().

// `step` is by default the number of steps that the group's training has done: 3 after the third backward. After
// Snapshots::restore() the default `step` includes the steps of earlier runs. DistributedDataParallel::set_steps()
// doesn't change the default `step`, because a group may train several networks. A program that restores without
// Snapshots should pass ddp.steps() as `step`. A later value for the same name and step replaces the earlier value. If
// a restarted job repeats steps, the job's new values for these steps thus replace the earlier values. NaN and infinity
// are ordinary values.
//
// `name` must have 1 to 63 bytes of UTF-8 without control characters; "/" groups names in TensorBoard. A rank keeps the
// values of at most 64 names, and drops the values of all further names. The rank logs a warning at the 1st, 2nd, 4th,
// 8th ... dropped value. For a name that is logged often, the report keeps 256 to 512 points for each start of the job.
//
// Throws InvalidArgument if `name` is not valid, or if `step` is below 0 or above 2^53.
LOCKSTEP_API void log_scalar(std::string_view name, double value, const ProcessGroup& group,
                             std::optional<std::int64_t> step = std::nullopt);

}  // namespace lockstep
