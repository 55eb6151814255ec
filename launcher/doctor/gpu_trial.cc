// SPDX-License-Identifier: Apache-2.0
#include "launcher/doctor/gpu_trial.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <csignal>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "launcher/base/amounts.h"
#include "launcher/placement/seen_gpus.h"
#include "lockstep/base/environment.h"
#include "runtime/base/printable.h"

namespace lockstep::launcher::doctor {
namespace {

using nlohmann::json;
using GpuSet = std::vector<int>;  // by rank in the job of all, ascending

constexpr const char* kTogether = "GPUs together";
constexpr std::chrono::seconds kStartAndEnd{10};  // of the processes around the ranks
constexpr std::size_t kMostWords = 400;

json run_gpu_job(const DoctorOptions& options, const GpuSet& gpus, bool is_pair, const Deadline& deadline) {
  const auto limit = std::to_string(std::chrono::ceil<std::chrono::seconds>(options.probe_timeout).count());
  std::vector<std::string> command{"/proc/self/exe", "run", "--grace", "5", "--timeout", limit};
  if (options.run.starts_launchers()) {
    command.insert(command.end(), {"--nproc-per-node", "gpu"});
    command.insert(command.end(), options.host_flags.begin(), options.host_flags.end());
  } else {
    command.insert(command.end(), {"--devices", fmt::format("{}", fmt::join(gpus, ","))});
  }
  command.insert(command.end(), {"--", probe_path(), "gpu-rank", limit});
  if (is_pair) command.emplace_back("sums");
  json job = read_gpu_job(run_helper(command, deadline));
  job["gpus"] = gpus;
  return job;
}

// What the ranks of a group have said of its sums.
struct GroupSums {
  int ranks = 0;
  double seconds = 0;  // of the slowest rank
  std::uint64_t bytes = 0;
  std::set<std::string> via = {};
  std::string problem = {};
  std::string remedy = {};
};
using SumsByGroup = std::map<GpuSet, GroupSums>;

constexpr const char* kWrongRemedy =
    "if it is the same GPU when run again, look for Xid errors (dmesg), at nvidia-smi -q -d ECC, and what nccl-tests "
    "says";
constexpr const char* kHangRemedy =
    "look for Xid errors (dmesg); if it works with NCCL_P2P_DISABLE=1, at nvidia-smi topo -m, PCI access control (ACS) "
    "and IOMMU; NCCL_DEBUG=INFO says more";

std::string names_of(const GpuSet& gpus) {
  return fmt::format("{} {}", gpus.size() == 1 ? "GPU" : "GPUs", fmt::join(gpus, ", "));
}

// `gpus` are those of the job, by rank.
GpuSet gpus_of(const json& ranks, const GpuSet& gpus) {
  GpuSet result;
  for (const json& rank : ranks) {
    const auto index = rank.get<std::size_t>();
    result.push_back(index < gpus.size() ? gpus[index] : static_cast<int>(index));
  }
  return result;
}

void add_sums(const json& job, SumsByGroup& all) {
  const auto gpus = job.at("gpus").get<GpuSet>();
  for (const json& said : job.at("said")) {
    if (said.at("what") != "sums") continue;
    GroupSums& sums = all[gpus_of(said.at("ranks"), gpus)];
    if (said.contains("error")) {
      if (sums.problem.empty()) sums.problem = said.at("error").get<std::string>();
      sums.remedy = kHangRemedy;
      continue;
    }
    ++sums.ranks;
    sums.seconds = std::max(sums.seconds, said.at("seconds").get<double>());
    sums.bytes = said.at("bytes").get<std::uint64_t>();
    for (const json& via : said.at("via")) sums.via.insert(via.get<std::string>());
    const auto wrong = said.at("wrong").get<std::string>();
    if (wrong.empty()) continue;
    const int gpu = gpus_of(json::array({said.at("rank")}), gpus).front();
    sums.problem += fmt::format("{}GPU {} has a wrong sum: {}", sums.problem.empty() ? "" : "; ", gpu, wrong);
    sums.remedy = kWrongRemedy;
  }
}

double busbw_of(const GpuSet& gpus, const GroupSums& sums) {
  const auto n = static_cast<double>(gpus.size());
  return static_cast<double>(sums.bytes) / sums.seconds / 1e9 * 2 * (n - 1) / n;
}

// The GPU that is in every pair with a problem, and in none without.
std::optional<int> suspect(const SumsByGroup& all) {
  std::map<int, int> bad, good;
  int pairs = 0;
  for (const auto& [gpus, sums] : all) {
    if (gpus.size() != 2) continue;
    pairs += sums.problem.empty() ? 0 : 1;
    for (const int gpu : gpus) ++(sums.problem.empty() ? good : bad)[gpu];
  }
  std::vector<int> suspects;
  for (const auto& [gpu, times] : bad) {
    if (times == pairs && !good.contains(gpu)) suspects.push_back(gpu);
  }
  return suspects.size() == 1 ? std::optional(suspects.front()) : std::nullopt;
}

std::string told(const std::set<std::string>& via) {
  return via.empty() ? "" : fmt::format(" ({})", fmt::join(via, " "));
}

// The group of all comes first, then a line for the pairs of each GPU with those behind it.
void add_groups(const SumsByGroup& all, std::size_t world, Findings& findings) {
  Findings problems;
  std::map<int, std::vector<std::string>> rows;
  std::set<std::string> via;  // of all GPUs
  std::size_t tried = 0;
  for (const auto& [gpus, sums] : all) {
    if (gpus.size() == world) via = sums.via;
  }
  for (const auto& [gpus, sums] : all) {
    const bool is_pair = gpus.size() < world;
    if (is_pair) ++tried;
    if (!sums.problem.empty()) {
      problems.push_back(
          {kTogether, names_of(gpus), printable(sums.problem, kMostWords), Health::problem, sums.remedy});
    } else if (is_pair) {
      rows[gpus[0]].push_back(
          fmt::format("{}: {:.1f}{}", gpus[1], busbw_of(gpus, sums), sums.via == via ? "" : told(sums.via)));
    } else {
      findings.push_back(
          {kTogether, "all-reduce",
           fmt::format("of {}: sums are right; {:.1f} GB/s algbw, {:.1f} GB/s busbw{}", readable_bytes(sums.bytes),
                       static_cast<double>(sums.bytes) / sums.seconds / 1e9, busbw_of(gpus, sums), told(sums.via))});
    }
  }
  for (const auto& [gpu, partners] : rows) {
    findings.push_back(
        {kTogether, fmt::format("GPU {} with", gpu), fmt::format("{} GB/s busbw", fmt::join(partners, "; "))});
  }
  findings.insert(findings.end(), problems.begin(), problems.end());
  if (const auto gpu = suspect(all); gpu && world > 2) {
    findings.push_back({kTogether, fmt::format("GPU {}", *gpu),
                        "is in each pair that has a problem, and in none that works", Health::note,
                        "leave it out with --devices until it is mended"});
  }
  if (const std::size_t pairs = world * (world - 1) / 2; world > 2 && tried < pairs) {
    findings.push_back({kTogether, "pairs", fmt::format("{} of {} were not tried", pairs - tried, pairs), Health::note,
                        "give them more time: --probe-timeout"});
  }
}

void add_steps(const json& job, std::size_t world, Findings& findings) {
  double together = 0, alone = 0, hidden = 0, waited = 0;
  int steps = 0;
  std::string wrong;
  for (const json& said : job.at("said")) {
    if (said.at("what") != "steps") continue;
    const auto seconds = said.at("seconds").get<double>();
    if (said.at("ranks").size() == 1) {
      alone = std::max(alone, seconds);
    } else if (seconds > together) {
      together = seconds;
      hidden = said.at("hidden").get<double>();
      waited = said.at("waited").get<double>();
      steps = said.at("steps").get<int>();
    }
    if (wrong.empty()) wrong = said.at("wrong").get<std::string>();
  }
  if (steps == 0) return;  // the job's end says why
  Finding finding{kTogether, "training",
                  fmt::format("{} steps of a Reducer: {:.2f} ms each, of a rank alone {:.2f} ms; of {:.2f} ms of "
                              "communication {:.0f} % ran behind backward",
                              steps, 1e3 * together, 1e3 * alone, 1e3 * (hidden + waited),
                              100 * hidden / std::max(hidden + waited, 1e-9))};
  if (!wrong.empty()) {
    finding = {kTogether, "training", fmt::format("the mean over {} ranks is wrong: {}", world, wrong), Health::problem,
               kWrongRemedy};
  }
  findings.push_back(std::move(finding));
}

void add_death(const json& job, std::size_t world, Findings& findings) {
  double latest = 0;
  std::size_t named = 0;
  std::string other;
  for (const json& said : job.at("said")) {
    if (said.at("what") != "death") continue;
    latest = std::max(latest, said.at("seconds").get<double>());
    if (said.at("named") == static_cast<int>(world) - 1) {
      ++named;
    } else {
      other = said.at("text").get<std::string>();
    }
  }
  Finding finding{kTogether, "a killed rank",
                  fmt::format("rank {} (SIGKILL) is named by {} of {} others, the last after {:.2f} s", world - 1,
                              named, world - 1, latest)};
  if (named + 1 < world) {
    finding.health = Health::problem;
    if (!other.empty()) finding.value += "; another says: " + printable(other, kMostWords);
    finding.remedy = "report it with the output of 'lockstep doctor --gpus --json'";
  } else if (latest > 1) {
    finding.health = Health::note;
    finding.remedy = "lockstep promises 1 s: run it again on a machine that is idle, and report it if it stays";
  }
  findings.push_back(std::move(finding));
}

// The first failure that a rank has told, else how the job ended; empty if it has told the results of all ranks.
std::string job_problem(const json& job) {
  for (const json& said : job.at("said")) {
    if (said.at("what") == "failed") {
      return fmt::format("rank {}: {}", said.at("rank").get<int>(), said.at("error").get<std::string>());
    }
  }
  return job.at("problem").get<std::string>();
}

// What is between `mark` and `end`; "" if there is none of them.
std::string word_behind(std::string_view text, std::string_view mark, char end = ' ') {
  const auto at = text.find(mark);
  return at == std::string_view::npos
             ? ""
             : std::string(text.substr(at + mark.size(), text.find(end, at + mark.size()) - at - mark.size()));
}

// "NET/IB/GDRDMA" of a line of NCCL's, "... Channel 03/0 : 0[0] -> 8[0] [send] via NET/IB/3/GDRDMA", whichever the
// network card is.
std::string transport_in(std::string_view line) {
  std::istringstream parts(word_behind(line, " via "));
  std::vector<std::string> names;
  for (std::string part; std::getline(parts, part, '/');) {
    if (!parse_int(part)) names.push_back(part);
  }
  return fmt::format("{}", fmt::join(names, "/"));
}

bool has_deaths(const json& job) {
  return std::ranges::any_of(job.at("said"), [](const json& said) { return said.at("what") == "death"; });
}

}  // namespace

json try_gpus(const DoctorOptions& options, int gpus) {
  const Deadline deadline = Deadline::after(2 * options.probe_timeout + kStartAndEnd);
  GpuSet all(static_cast<std::size_t>(gpus));
  std::iota(all.begin(), all.end(), 0);
  json trial = {{"jobs", json::array({run_gpu_job(options, all, false, deadline)})}};
  if (has_deaths(trial["jobs"][0])) return trial;
  for (int distance = 1; gpus > 2 && distance < gpus; ++distance) {
    for (int first = 0; first + distance < gpus && !deadline.expired(); ++first) {
      trial["jobs"].push_back(run_gpu_job(options, {first, first + distance}, true, deadline));
    }
  }
  return trial;
}

json read_gpu_job(const HelperResult& result) {
  json job = {{"nccl", ""}, {"said", json::array()}, {"problem", ""}};
  std::map<std::int64_t, std::set<std::string>> via;  // by rank
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    const auto rank = parse_int(word_behind(line, "[rank ", ']'));
    const auto end = line.find("] ", line.find("[rank "));
    if (!rank || end == std::string::npos) continue;
    const std::string_view text = std::string_view(line).substr(end + 2);
    if (const auto version = word_behind(text, "NCCL version "); !version.empty()) job["nccl"] = version;
    if (text.find(" NCCL INFO Channel ") != std::string_view::npos) via[*rank].insert(transport_in(text));
    json said = text.starts_with("{") ? json::parse(text, nullptr, false) : json();
    if (!said.is_object() || !said.contains("what")) continue;
    said["rank"] = *rank;
    if (said["what"] == "sums") said["via"] = std::exchange(via[*rank], {});
    job["said"].push_back(std::move(said));
  }
  if (!result.ending) {
    job["problem"] = "it was killed when its time was over";
  } else if (!result.ending->ok() && !(has_deaths(job) && result.ending->exit_code() == 128 + SIGKILL)) {
    const std::string& err = result.err;
    job["problem"] = fmt::format("it {}: {}", result.ending->describe(),
                                 printable(err.substr(err.size() - std::min(err.size(), kMostWords)), kMostWords));
  }
  return job;
}

Findings gpu_trial_findings(const json& trial) {
  try {
    const json& job = trial.at("jobs").at(0);
    Findings findings;
    SumsByGroup sums;
    for (const json& each : trial.at("jobs")) add_sums(each, sums);
    std::size_t world = job.at("gpus").size();
    std::map<std::pair<std::string, std::string>, GpuSet> models;  // by host and name
    for (const json& said : job.at("said")) {
      if (said.at("what") != "rank") continue;
      const int rank = said.at("rank").get<int>();
      world = std::max(world, static_cast<std::size_t>(rank) + 1);
      models[{said.at("host").get<std::string>(), said.at("gpu").get<std::string>()}].push_back(rank);
    }
    for (auto& [model, gpus] : models) {
      std::ranges::sort(gpus);
      findings.push_back({kTogether, names_of(gpus), fmt::format("{}, on {}", model.second, printable(model.first))});
    }
    const auto nccl = job.at("nccl").get<std::string>();
    findings.push_back({kTogether, "NCCL", nccl.empty() ? "has not told its version; see NCCL_DEBUG" : nccl});
    for (std::size_t i = 1; i < trial.at("jobs").size(); ++i) {
      const json& pair = trial.at("jobs").at(i);
      GroupSums& of_pair = sums[pair.at("gpus").get<GpuSet>()];
      if (of_pair.problem.empty() && of_pair.ranks < 2) of_pair = {.problem = job_problem(pair), .remedy = kHangRemedy};
    }
    add_groups(sums, world, findings);
    add_steps(job, world, findings);
    if (has_deaths(job)) {
      add_death(job, world, findings);
    } else {
      findings.push_back({kTogether, fmt::format("all {}", world),
                          printable("the job has not come to its end: " + job_problem(job), 2 * kMostWords),
                          Health::problem, kHangRemedy});
    }
    std::set<std::string> given;
    for (Finding& finding : findings) {
      if (!finding.remedy.empty() && !given.insert(finding.remedy).second) finding.remedy = "as above";
    }
    return findings;
  } catch (const json::exception& error) {
    return {{kTogether, "lockstep-probe", fmt::format("its answer can't be used: {}", error.what()), Health::problem,
             "install all of lockstep again: the launcher and lockstep-probe are of one build"}};
  }
}

}  // namespace lockstep::launcher::doctor
