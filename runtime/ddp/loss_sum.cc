// SPDX-License-Identifier: Apache-2.0
#include "runtime/ddp/loss_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace lockstep {
namespace {

// With 2^k parts or fewer: whole numbers stay below 2^(61 - 2k) and fractions have at most as many bits, so that the
// parts' sums stay below half of the flag, 2^(62 - k), and the sum of all their flags fits.
struct FixedPoint {
  explicit FixedPoint(int parts) : log2(std::bit_width(static_cast<unsigned>(parts) - 1)) {}

  std::int64_t flag() const { return std::int64_t{1} << (62 - log2); }
  std::int64_t limit() const { return std::int64_t{1} << (61 - 2 * log2); }
  int fraction_bits() const { return std::min(52, 61 - 2 * log2); }

  int log2;
};

}  // namespace

LossSum::LossSum(int parts) : parts_(parts) {}

void LossSum::add(Loss kind, std::optional<double> loss, std::int64_t weight) {
  weight_ += weight;
  if (weight == 0) return;
  if (!loss) {
    is_known_ = false;
    return;
  }
  const FixedPoint point(parts_);
  const double sum = kind == Loss::mean ? *loss * static_cast<double>(weight) : *loss;
  const double whole = std::floor(sum);
  if (!(std::abs(whole) < static_cast<double>(point.limit()))) {
    is_finite_ = false;
    return;
  }
  fraction_ += std::llround(std::ldexp(sum - whole, point.fraction_bits()));
  whole_ += static_cast<std::int64_t>(whole) + (fraction_ >> point.fraction_bits());
  fraction_ &= (std::int64_t{1} << point.fraction_bits()) - 1;
  if (whole_ <= -point.limit() || whole_ >= point.limit()) is_finite_ = false;
}

void LossSum::write(StepNote& note) const {
  const FixedPoint point(parts_);
  note.weight = weight_;
  note.loss_whole = 0;
  note.loss_fraction = 0;
  if (!is_known_) {
    note.loss_fraction = point.flag();
  } else if (!is_finite_) {
    note.loss_whole = point.flag();
  } else {
    note.loss_whole = whole_;
    note.loss_fraction = fraction_;
  }
}

GlobalBatch global_batch_of(const NotedStep& noted, Loss kind, int parts) {
  const FixedPoint point(parts);
  const StepNote& all = noted.of_all;
  GlobalBatch batch{.step = noted.step, .weight = all.weight};
  if (noted.step < 0 || all.weight == 0 || all.loss_fraction >= point.flag()) return batch;
  if (all.loss_whole > point.flag() / 2) {
    batch.loss = std::numeric_limits<double>::quiet_NaN();
    return batch;
  }
  const double sum =
      static_cast<double>(all.loss_whole) + std::ldexp(static_cast<double>(all.loss_fraction), -point.fraction_bits());
  batch.loss = kind == Loss::mean ? sum / static_cast<double>(all.weight) : sum;
  return batch;
}

}  // namespace lockstep
