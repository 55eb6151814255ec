// SPDX-License-Identifier: Apache-2.0
#include "launcher/placement/rank_count.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string_view>

#include "launcher/base/amounts.h"
#include "lockstep/base/error.h"
#include "runtime/base/text.h"

namespace lockstep::launcher {
namespace {

int count_entries(const std::string& folder, bool (*wanted)(std::string_view)) {
  int count = 0;
  std::error_code error;  // a folder that does not exist holds no GPU
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (wanted(entry->path().filename().native())) ++count;
  }
  return count;
}

bool any_name(std::string_view) { return true; }

bool is_gpu_node(std::string_view name) {
  constexpr std::string_view prefix = "nvidia";
  return name.size() > prefix.size() && name.starts_with(prefix) &&
         std::all_of(name.begin() + prefix.size(), name.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

}  // namespace

int visible_gpus(int present, const std::optional<std::string>& cuda_visible_devices) {
  if (!cuda_visible_devices) return present;
  int visible = 0;
  for (const std::string_view entry : split(*cuda_visible_devices, ',')) {
    const auto index = parse_int(entry);
    const bool by_uuid = entry.starts_with("GPU-") || entry.starts_with("MIG-");
    if (!by_uuid && (!index || *index < 0 || *index >= present)) break;
    ++visible;
  }
  return present == 0 ? 0 : visible;
}

Gpus find_gpus(const std::string& proc_folder, const std::string& dev_folder, const Environment& environment) {
  int present = count_entries(proc_folder, any_name);
  if (present == 0) present = count_entries(dev_folder, is_gpu_node);
  if (present == 0) {
    return {0, fmt::format("no NVIDIA driver shows a GPU (nothing in {}, no {}/nvidia0)", proc_folder, dev_folder)};
  }
  // CUDA reads a set but empty variable as no GPUs; Environment::get treats it as unset.
  const auto found = environment.variables().find("CUDA_VISIBLE_DEVICES");
  const auto value = found == environment.variables().end() ? std::nullopt : std::optional(found->second);
  const int visible = visible_gpus(present, value);
  if (visible == 0) {
    return {0, fmt::format("CUDA_VISIBLE_DEVICES='{}' hides the {} that this host has", *value, present)};
  }
  return {visible, {}};
}

RankCount choose_ranks(const RunOptions& options, const Gpus& gpus, int cores) {
  const auto number = parse_int(options.nproc_per_node);
  if (number && options.ranks && *number != *options.ranks) {
    throw InvalidArgument(fmt::format(
        "-n {} and --nproc-per-node {} disagree, but on one host both say the number of ranks; give one of them",
        *options.ranks, *number));
  }
  if (options.ranks) return {*options.ranks, {}};
  if (number) return {static_cast<int>(*number), {}};
  if (options.nproc_per_node == "gpu" && gpus.count == 0) {
    throw InvalidArgument(
        fmt::format("--nproc-per-node gpu: no GPU here: {}; to train on the CPU give --nproc-per-node cpu or a number",
                    gpus.reason));
  }
  if (options.nproc_per_node != "cpu" && gpus.count > 0) {
    return {std::min(gpus.count, kMaxRanks), fmt::format("1 per GPU, {} visible", gpus.count)};
  }
  return {std::min(cores, kMaxRanks), fmt::format("1 per core, {} allowed", cores)};
}

std::string describe_crowd(const CoreDemand& demand) {
  const auto [ranks, threads, cores, uses_gpus, is_multi_host] = demand;
  const int each = threads.value_or(std::max(1, cores / ranks));
  if (std::int64_t{ranks} * (uses_gpus ? 1 : each) <= cores) return {};
  const std::string remedy = ranks > cores
                                 ? fmt::format("{} {}{} has a core for each", is_multi_host ? "--nproc-per-node" : "-n",
                                               cores, each > 1 ? " with OMP_NUM_THREADS=1" : "")
                                 : fmt::format("OMP_NUM_THREADS={} is enough", cores / ranks);
  return fmt::format("{} x {} on {}: the threads take turns, so steps take longer{}; {}", count_of(ranks, "rank"),
                     count_of(each, "thread"), count_of(cores, "core"),
                     is_multi_host ? ", and ranks of this host may be named as slow"
                                   : " and no rank is named as slow while the job runs",
                     remedy);
}

}  // namespace lockstep::launcher
