// SPDX-License-Identifier: Apache-2.0
// The starts of one job, recorded in its folder: run7/generation-000003.json is the third, with the process that
// started it and the step from which it resumed.
//
// A generation fences those before it: snapshots that earlier generations write of steps later than the one it resumed
// from are not part of the job any more, and are never read. A start that resumes from nothing fences all of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::checkpoint {

// "2026-11-23T03:00:00Z": now.
std::string utc_now();

// One start of a job.
struct Generation {
  std::int64_t number = 0;                               // from 1
  std::optional<std::int64_t> from_step = std::nullopt;  // nullopt: a fresh start
  std::string writer = {};                               // "rank 0 (host node7, pid 4711)"
  std::string time = {};
  std::string why_not = {};         // why its record can't be read; then nothing but its number is known
  bool is_of_later_format = false;  // and that is because a later lockstep has written it
};

// A writer as a record has it: printable, and not too long.
std::string writer_in_record(const std::string& writer);
// The generations recorded in the folder, in order. Empty if there is no folder. SystemError.
std::vector<Generation> list_generations(const std::filesystem::path& folder);
// Durable once this returns. False if another process of the same start has recorded it, in a folder that both see.
// InvalidArgument if one of another start has recorded that number meanwhile, with its name.
bool record_generation(const std::filesystem::path& folder, const Generation& generation);
// Removes the files that record_generation() of killed processes left, and each record that a later one makes useless,
// as it resumed from the same step or an earlier one. SystemError.
void remove_spent_records(const std::filesystem::path& folder);

}  // namespace lockstep::checkpoint
