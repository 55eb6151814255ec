// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/snapshot/retention.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <iterator>
#include <set>
#include <tuple>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/checkpoint/snapshot/generations.h"
#include "runtime/checkpoint/snapshot/rescue_claim.h"
#include "runtime/checkpoint/storage.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

// In the order in which values are better.
struct Valued {
  double cost = 0;  // the lower the better
  std::int64_t step = 0;
  std::int64_t generation = 0;

  bool operator<(const Valued& other) const {
    return std::tie(cost, step, generation) < std::tie(other.cost, other.step, other.generation);
  }
};

Valued valued(const FoundSnapshot& snapshot, const Retention& retention) {
  const double value = *snapshot.manifest->value;
  return {
      .cost = retention.higher_is_better ? -value : value, .step = snapshot.step, .generation = snapshot.generation};
}

bool has_value(const FoundSnapshot& snapshot) {
  return snapshot.is_saved() && snapshot.manifest->value && !std::isnan(*snapshot.manifest->value);
}

std::set<Valued> best_of(std::span<const FoundSnapshot> snapshots, const Retention& retention) {
  std::set<Valued> best;
  for (const FoundSnapshot& snapshot : snapshots) {
    if (has_value(snapshot)) best.insert(valued(snapshot, retention));
  }
  while (std::cmp_greater(best.size(), retention.keep_best)) best.erase(std::prev(best.end()));
  return best;
}

}  // namespace

bool is_among_best(std::span<const FoundSnapshot> snapshots, std::int64_t step, double value,
                   const Retention& retention) {
  if (std::isnan(value)) return false;
  const double cost = retention.higher_is_better ? -value : value;
  const auto better = std::count_if(snapshots.begin(), snapshots.end(), [&](const FoundSnapshot& other) {
    if (!has_value(other) || other.step == step) return false;
    const Valued it = valued(other, retention);
    return std::tie(it.cost, it.step) < std::tie(cost, step);
  });
  return better < retention.keep_best;
}

void clean(const fs::path& folder, const Retention& retention) {
  const std::vector<FoundSnapshot> snapshots = list_snapshots(folder);
  const std::set<Valued> best = best_of(snapshots, retention);
  const std::int64_t newest = newest_generation(folder);
  const auto resumed = numbers_of(retention.resumes_from);
  int whole = 0;
  bool has_sound = false;
  bool has_removed = false;
  std::exception_ptr failure;
  // Newest first: what counts as one of the newest is known before an older one goes. A crash between two removals
  // leaves more snapshots than are kept, and each of them whole or without a manifest.
  for (const FoundSnapshot& snapshot : snapshots) {
    const bool is_unfinished = snapshot.state == SnapshotState::unfinished;
    const std::string name = snapshot.path.filename().string();
    const bool is_survivors = numbers_of(name)->survivor.has_value();
    const bool is_passed_over =
        resumed && name != retention.resumes_from &&
        std::pair(snapshot.step, snapshot.generation) >= std::pair(resumed->step, resumed->generation);
    const bool is_whole =
        snapshot.is_saved() ||
        (is_unfinished && !is_survivors && retention.saved_elsewhere.contains({snapshot.step, snapshot.generation}));
    const bool is_sound = is_whole && snapshot.step <= retention.sound && !std::exchange(has_sound, true);
    const bool is_kept = snapshot.state == SnapshotState::damaged || snapshot.state == SnapshotState::later ||
                         (is_whole && (is_passed_over || whole++ < retention.keep || is_sound ||
                                       (retention.keep_every > 0 && snapshot.step % retention.keep_every == 0) ||
                                       (has_value(snapshot) && best.contains(valued(snapshot, retention)))));
    // A survivor of this run may be writing it now, without this process's knowing.
    const bool is_under_way =
        is_unfinished && snapshot.generation == newest && (snapshot.step == retention.being_written || is_survivors);
    if (is_kept || is_under_way) continue;
    try {
      remove_snapshot(snapshot.path);
      has_removed = true;
    } catch (const SystemError&) {
      if (!failure) failure = std::current_exception();
    }
  }
  // Once for all of them: what a loss of power before it brings back, the next cleaning removes again.
  if (has_removed) sync_folder(folder);
  remove_rescue_claims(folder, newest);
  remove_spent_records(folder);
  if (failure) std::rethrow_exception(failure);
}

void clean_rescues(const fs::path& folder, std::int64_t generation, std::optional<std::int64_t> from_step) {
  bool has_removed = false;
  for (const FoundSnapshot& snapshot : list_snapshots(folder)) {
    const bool is_rescue = numbers_of(snapshot.path.filename().string())->survivor.has_value();
    const bool is_spent = snapshot.state == SnapshotState::unfinished || snapshot.state == SnapshotState::fenced ||
                          (snapshot.state == SnapshotState::whole && from_step && snapshot.step < *from_step);
    if (!is_rescue || !is_spent || snapshot.generation >= generation) continue;
    remove_snapshot(snapshot.path);
    has_removed = true;
  }
  if (has_removed) sync_folder(folder);
  remove_rescue_claims(folder, generation);
  remove_spent_records(folder);
}

}  // namespace lockstep::checkpoint
