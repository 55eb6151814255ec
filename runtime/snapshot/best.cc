// SPDX-License-Identifier: Apache-2.0
// Snapshots that are kept for a value of theirs, such as a validation loss.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/ddp/on_rank0.h"
#include "runtime/base/logging.h"
#include "runtime/snapshot/offers.h"

namespace lockstep {

BasicSnapshots::Impl::BestStep BasicSnapshots::Impl::judge(double value) {
  const std::int64_t count = steps.count();
  if (std::isnan(value)) {
    log_warn("snapshots: step {} is none of the best: its value is NaN", count);
    return BestStep::is_none;
  }
  writer->wait();
  report();
  try {
    if (!checkpoint::is_among_best(checkpoint::list_snapshots(folder), count, value, retention())) {
      return BestStep::is_none;
    }
    const auto durable = find_durable(count);
    if (!durable) return BestStep::to_save;
    checkpoint::set_value(*durable, value);
    clean(options.keep);
    log_info("snapshots: step {}, saved before, is one of the {} best, with {}", count, options.keep_best, value);
    return BestStep::is_saved;
  } catch (const Error& error) {
    log_error("snapshots: step {} is not kept for its value, {}, and the run continues: {}", count, value,
              error.what());
    return BestStep::is_none;
  }
}

bool BasicSnapshots::save_if_best(double value) {
  Impl& self = *impl_;
  self.require_begun("save_if_best");
  wait();  // for each rank's share; a step that is one of the best is not left out
  if (self.options.keep_best == 0) {
    throw InvalidArgument("Snapshots: save_if_best() where SnapshotOptions::keep_best is 0; give how many are kept");
  }
  const auto said = on_rank0("Snapshots::save_if_best", *self.group,
                             [&] { return std::string(1, static_cast<char>(self.judge(value))); });
  const auto best = static_cast<Impl::BestStep>(said.front());
  if (best == Impl::BestStep::to_save) {
    self.start(fmt::format("one of the {} best, with {}", self.options.keep_best, value), value);
  }
  return best != Impl::BestStep::is_none;
}

std::optional<RestoredSnapshot> BasicSnapshots::load_best_model() {
  constexpr const char* kCall = "Snapshots::load_best_model";
  Impl& self = *impl_;
  self.require_begun("load_best_model");
  save("load_best_model()");  // the last step is lost otherwise
  std::vector<Impl::Offer> offers = self.gather_offers(kCall);
  std::erase_if(offers, [](const Impl::Offer& offer) {
    return !offer.value || std::isnan(*offer.value) || !offer.later.empty();
  });
  // Stable: of equal values the earlier step's, and of one step the lowest rank's, come first.
  std::stable_sort(offers.begin(), offers.end(), [&](const Impl::Offer& a, const Impl::Offer& b) {
    const double left = self.options.higher_is_better ? -*a.value : *a.value;
    const double right = self.options.higher_is_better ? -*b.value : *b.value;
    return left < right || (left == right && a.step < b.step);
  });
  const Impl::Choice choice = self.choose(offers, kCall, "model.safetensors");
  if (!choice.offer) return std::nullopt;
  Impl::Contents contents = self.read(*choice.offer);
  const auto is_other = [](const auto& item) { return item.name != "model"; };
  std::erase_if(contents.manifest.items, is_other);
  std::erase_if(self.items, is_other);
  self.is_over = true;
  self.check(*choice.offer, contents);
  self.load(*choice.offer, contents);
  if (self.group->rank() == 0) {
    log_info("snapshots: the model is that of step {}, with the best value, {}: '{}'", choice.offer->step,
             *choice.offer->value, choice.offer->path);
  }
  return RestoredSnapshot{.step = choice.offer->step,
                          .path = choice.offer->path,
                          .rank = choice.offer->rank,
                          .world_size = contents.manifest.world_size,
                          .value = choice.offer->value};
}

}  // namespace lockstep
