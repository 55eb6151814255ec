// SPDX-License-Identifier: Apache-2.0
// Decides which snapshots of a job's folder stay, and removes the others.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "runtime/checkpoint/snapshot/series.h"

namespace lockstep::checkpoint {

struct Retention {
  int keep = 3;                 // the newest
  std::int64_t keep_every = 0;  // and those whose step is a multiple; 0: no more
  int keep_best = 0;            // and those of the best values
  bool higher_is_better = false;
  std::int64_t being_written = -1;  // this run's unfinished snapshot of that step stays: other ranks write to it now
  // Steps and generations of snapshots whose manifest lies on another disk: their files here count as saved.
  std::set<std::pair<std::int64_t, std::int64_t>> saved_elsewhere = {};
  // The folder's name of the snapshot from which the job resumes, while no record here says so: newer ones, which were
  // passed over, stay and do not count. Empty: none.
  std::string resumes_from = {};
  std::int64_t sound = -1;  // the newest snapshot that is not newer than this step stays; -1: none
};

// Whether a snapshot of that value would be one of the `keep_best`, beside those of other steps. The earlier of two
// equal values is better. False for NaN.
bool is_among_best(std::span<const FoundSnapshot> snapshots, std::int64_t step, double value,
                   const Retention& retention);
// Removes snapshots that `retention` does not keep, whole and partial ones, and unfinished and fenced ones, unless a
// manifest elsewhere makes them parts of a saved one. A damaged one stays to be looked at: no run resumes from it, and
// a step written anew takes its place. A snapshot that a later lockstep has written stays too. Only the holder of the
// lock, and on a disk that is not rank 0's, or is full, the ranks that write there; not while another snapshot than
// `being_written` is being written. Removes what it can, then throws SystemError for the first that it could not.
void clean(const std::filesystem::path& folder, const Retention& retention);
// Cleans a disk that is not rank 0's, which nobody else cleans, in start `generation` of the job, which resumes from
// `from_step`: removes snapshots that survivors of earlier starts have saved of steps before that, and those of
// survivors that are unfinished or fenced. Only the holder of the lock. SystemError.
void clean_rescues(const std::filesystem::path& folder, std::int64_t generation, std::optional<std::int64_t> from_step);

}  // namespace lockstep::checkpoint
