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
// A rank adds the values of its own samples. If each sample is on one rank (data::chunk, or a sampler that pads
// nothing), the result equals that of a single process. All values are summed exactly and the sum is rounded once, so
// the result does not depend on the order of the values or on the ranks that added them. A NaN that a rank adds makes
// the result NaN. The exception is a NaN with count 0, which is the mean of no rows.
//
// A rank's request to stop travels with result() (comm/stop.h). If a rank left an evaluation because of a request to
// stop, all ranks have agreed to stop after result(), and the results count the samples that the ranks have seen.
//
// Threads: Metrics belong to the thread that uses the group. Failure: result() throws the group's errors.
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

// Metric is the metric of one name, over all ranks.
struct LOCKSTEP_API Metric {
  std::string name;
  double sum = 0;
  std::int64_t count = 0;
  // Returns the mean, or NaN if the count is 0.
  double mean() const;
};

// MetricResults is the result of Metrics::result(). Its functions read values on this rank, and do not communicate.
class LOCKSTEP_API MetricResults {
 public:
  explicit MetricResults(std::vector<Metric> all) : all_(std::move(all)) {}

  // Returns all metrics, sorted by name.
  const std::vector<Metric>& all() const { return all_; }
  // Returns the metric of a name. Throws InvalidArgument, which lists the names, for a name to which no rank has added
  // a value. If no rank has added any value, every name has a count of 0.
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

  // Adds a sum, and the number of values in the sum, to this rank's part of `name`. Throws InvalidArgument for a count
  // below 0, and for an empty name.
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
  // have added values must have used equal names; a rank without rows may have added none. Otherwise every rank throws
  // Mismatch, which lists the names, and the group stays usable.
  MetricResults result();
  // Returns the mean of one name. This call is collective too, so use result() for several names.
  double result(std::string_view name) { return result().mean(name); }

  // Forgets all values of this rank, for the next epoch.
  void reset() { parts_.clear(); }

 private:
  // Part is one rank's part of one name, in the form that travels. The sum is a fixed-point number with room for the
  // bits of any double.
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
  // Returns the names of all ranks, after the ranks have found that their names differ, or throws Mismatch.
  std::vector<std::string> names_of_all() const;

  ProcessGroup* group_;
  std::map<std::string, Part, std::less<>> parts_;
};

// log_scalar() logs a number by name and step for the views of a run: progress bar, `lockstep top`, Prometheus, and the
// report with its TensorBoard events (docs/OBSERVE.md).
//
//   lockstep::log_scalar("val/loss", results.mean("loss"), *group);   // any rank, or several
//
// The launcher shows the mean over the ranks that logged a name in a step. A rank that logs nothing changes nothing.
// The library logs "loss" (of the global batch), "lr" (optim::Optimizer::step) and "grad_norm" (optim::clip_grad_norm).
//
// The call is not collective: it waits for no other rank, device or launcher. The call costs a lock and some words
// of memory.
// Threads: any thread may call log_scalar().

// `step` is by default the number of steps that the group's training has done: 3 after the third backward. After
// Snapshots::restore() the default includes the steps of earlier runs. DistributedDataParallel::set_steps() doesn't
// change the default, because a group may have several networks: a program that restores without Snapshots passes
// ddp.steps(). A later value for the same name and step replaces the earlier value; so a restarted job replaces the
// values of the steps that it repeats. NaN and infinity are ordinary values.
//
// `name` is 1 to 63 bytes of UTF-8 without control characters; "/" groups names in TensorBoard. A rank keeps 64 names,
// and drops values of further names; it warns at the 1st, 2nd, 4th, 8th ... dropped value. For a name that is logged
// often, the report has 256 to 512 points per start of the job.
//
// Throws InvalidArgument for another name, and for a step below 0 or above 2^53.
LOCKSTEP_API void log_scalar(std::string_view name, double value, const ProcessGroup& group,
                             std::optional<std::int64_t> step = std::nullopt);

}  // namespace lockstep
