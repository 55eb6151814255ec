// SPDX-License-Identifier: Apache-2.0
#include "launcher/placement/gpu_choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "launcher/flags/flag_values.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "runtime/base/text.h"

namespace lockstep::launcher {
namespace {

std::string list_of(const std::vector<SeenGpu>& seen) {
  return joined(seen, [i = 0](const SeenGpu& gpu) mutable {
    return fmt::format("{}{}", i++, gpu.uuid.empty() ? "" : " (" + gpu.uuid + ")");
  });
}

// Returns the index of the GPU that an entry means, if it means only one.
std::optional<std::size_t> find_uuid(std::string_view entry, const std::vector<SeenGpu>& seen) {
  std::optional<std::size_t> found;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    if (!seen[i].uuid.starts_with(entry)) continue;
    if (found) return std::nullopt;
    found = i;
  }
  return found;
}

}  // namespace

std::string visible_devices_of_ranks(const std::vector<std::string>& devices, const std::vector<SeenGpu>& seen,
                                     const std::optional<std::string>& inherited) {
  const std::string flag = fmt::format("--devices {}", fmt::join(devices, ","));
  const bool any_uuid =
      std::any_of(devices.begin(), devices.end(), [](const auto& entry) { return is_gpu_uuid(entry); });
  const auto outer = inherited ? split(*inherited, ',') : std::vector<std::string_view>{};
  std::vector<std::string> chosen;
  std::vector<std::string> meant;  // entries in one common form, for comparison
  for (const auto& entry : devices) {
    std::optional<std::size_t> index;
    if (!is_gpu_uuid(entry)) {
      index = static_cast<std::size_t>(*parse_int(entry));
      if (*index >= seen.size()) {
        throw InvalidArgument(fmt::format(
            "{}: this host has no GPU {}{}; choose from {}", flag, entry,
            inherited ? fmt::format(" (CUDA_VISIBLE_DEVICES='{}' counts)", *inherited) : "", list_of(seen)));
      }
    } else if (entry.starts_with("GPU-") && !seen.empty() && !seen.front().uuid.empty()) {
      index = find_uuid(entry, seen);
      if (!index)
        throw InvalidArgument(
            fmt::format("{}: {} must name exactly one of the GPUs here; choose from {}", flag, entry, list_of(seen)));
    }
    // CUDA requires one form in all entries. An entry of CUDA_VISIBLE_DEVICES itself has the right form: for a slice of
    // a GPU (MIG) the driver reports the UUID with the prefix GPU-, but accepts it only with MIG-.
    if (!index) {
      chosen.push_back(entry);
    } else if (*index < outer.size() && is_gpu_uuid(outer[*index])) {
      chosen.emplace_back(outer[*index]);
    } else if (any_uuid && !seen[*index].uuid.empty()) {
      chosen.push_back(seen[*index].uuid);
    } else {
      chosen.push_back(*index < outer.size() ? std::string(outer[*index]) : fmt::format("{}", *index));
    }
    auto form = index ? fmt::format("{}", *index) : entry;
    if (std::find(meant.begin(), meant.end(), form) != meant.end()) {
      throw InvalidArgument(
          fmt::format("{}: GPU {} comes twice, which hides the GPU from CUDA; name each GPU once, and give "
                      "--oversubscribe-gpu to run several ranks on one GPU",
                      flag, entry));
    }
    meant.push_back(std::move(form));
  }
  return fmt::format("{}", fmt::join(chosen, ","));
}

void require_a_gpu_each(int ranks, const std::vector<std::string>& devices, bool oversubscribe) {
  const auto gpus = static_cast<int>(devices.size());
  if (gpus == 0 || ranks <= gpus || oversubscribe) return;
  throw InvalidArgument(fmt::format(
      "--devices {}: {} ranks for {} GPU{}, so ranks 0 and {} would share GPU {}; give --nproc-per-node {}, or "
      "for tests --oversubscribe-gpu",
      fmt::join(devices, ","), ranks, gpus, gpus == 1 ? "" : "s", gpus, devices.front(), gpus));
}

}  // namespace lockstep::launcher
