// SPDX-License-Identifier: Apache-2.0
#include "launcher/doctor/gpu_trial.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <csignal>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/placement/seen_gpus.h"
#include "runtime/base/printable.h"
#include "runtime/base/text.h"

namespace lockstep::launcher::doctor {
namespace {

using nlohmann::json;

constexpr const char* kTogether = "GPUs together";
constexpr std::chrono::seconds kStartAndEnd{10};  // of the processes around the ranks
constexpr std::size_t kMostWords = 400;
constexpr const char* kWrongRemedy =
    "run this again; if the same GPU is wrong again, look for Xid errors (dmesg), look at nvidia-smi -q -d ECC, and "
    "run nccl-tests";
constexpr const char* kHangRemedy =
    "look for Xid errors (dmesg); if the job works with NCCL_P2P_DISABLE=1, look at nvidia-smi topo -m, PCI access "
    "control (ACS) and IOMMU; NCCL_DEBUG=INFO says more, and nccl-tests tries pairs";

std::vector<json> said_of(const json& trial, std::string_view what) {
  std::vector<json> result;
  for (const json& said : trial.at("said")) {
    if (said.at("what") == what) result.push_back(said);
  }
  return result;
}

// Lists the GPUs by model and host, and returns the number of ranks that are known.
std::size_t add_models(const json& trial, Findings& findings) {
  std::map<std::pair<std::string, std::string>, std::vector<int>> models;
  std::size_t count = 0;
  for (const json& said : said_of(trial, "rank")) {
    const int rank = said.at("rank").get<int>();
    count = std::max(count, static_cast<std::size_t>(rank) + 1);
    models[{said.at("host").get<std::string>(), said.at("gpu").get<std::string>()}].push_back(rank);
  }
  for (auto& [model, gpus] : models) {
    std::ranges::sort(gpus);
    findings.push_back({kTogether, fmt::format("{} {}", gpus.size() == 1 ? "GPU" : "GPUs", fmt::join(gpus, ", ")),
                        fmt::format("{}, on {}", printable(model.second), printable(model.first))});
  }
  return count;
}

void add_sums(const json& trial, std::size_t world, Findings& findings) {
  double seconds = 0;  // of the slowest rank
  std::uint64_t bytes = 0;
  std::string problem;
  for (const json& said : said_of(trial, "sums")) {
    seconds = std::max(seconds, said.at("seconds").get<double>());
    bytes = said.at("bytes").get<std::uint64_t>();
    const auto wrong = said.at("wrong").get<std::string>();
    if (wrong.empty()) continue;
    problem +=
        fmt::format("{}GPU {} has a wrong sum: {}", problem.empty() ? "" : "; ", said.at("rank").get<int>(), wrong);
  }
  if (bytes == 0) return;  // the job's end says why
  const auto n = static_cast<double>(world);
  const double algbw = static_cast<double>(bytes) / seconds / 1e9;
  Finding finding{kTogether, "all-reduce",
                  fmt::format("of {}: sums are right; {:.1f} GB/s algbw, {:.1f} GB/s busbw", readable_bytes(bytes),
                              algbw, algbw * 2 * (n - 1) / n)};
  if (!problem.empty()) {
    finding = {kTogether, "all-reduce", printable(problem, kMostWords), Health::problem, kWrongRemedy};
  }
  findings.push_back(std::move(finding));
}

void add_steps(const json& trial, std::size_t world, Findings& findings) {
  double together = 0, alone = 0, hidden = 0, waited = 0;
  int steps = 0;
  std::string wrong;
  for (const json& said : said_of(trial, "steps")) {
    const auto seconds = said.at("seconds").get<double>();
    if (said.at("ranks") == 1) {
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
                  fmt::format("{} steps of a Reducer: {:.2f} ms each, with a single rank {:.2f} ms; of {:.2f} ms of "
                              "communication {:.0f} % ran during backward",
                              steps, 1e3 * together, 1e3 * alone, 1e3 * (hidden + waited),
                              100 * hidden / std::max(hidden + waited, 1e-9))};
  if (!wrong.empty()) {
    finding = {kTogether, "training", fmt::format("the mean over {} ranks is wrong: {}", world, wrong), Health::problem,
               kWrongRemedy};
  }
  findings.push_back(std::move(finding));
}

void add_death(const std::vector<json>& deaths, std::size_t world, Findings& findings) {
  double latest = 0;
  std::size_t named = 0;
  std::string other;
  for (const json& said : deaths) {
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
    finding.remedy = "lockstep promises 1 s: run this again on an idle machine, and report it if it takes longer again";
  }
  findings.push_back(std::move(finding));
}

// The first failure that a rank has told, else how the job ended.
std::string job_problem(const json& trial) {
  const auto failures = said_of(trial, "failed");
  if (failures.empty()) return trial.at("problem").get<std::string>();
  return fmt::format("rank {}: {}", failures[0].at("rank").get<int>(), failures[0].at("error").get<std::string>());
}

}  // namespace

json try_gpus(const DoctorOptions& options) {
  const auto limit = std::to_string(std::chrono::ceil<std::chrono::seconds>(options.probe_timeout).count());
  std::vector<std::string> command{"/proc/self/exe", "run", "--grace",          "5",
                                   "--timeout",      limit, "--nproc-per-node", "gpu"};
  command.insert(command.end(), options.host_flags.begin(), options.host_flags.end());
  command.insert(command.end(), {"--", probe_path(), "gpu-rank", limit});
  return read_gpu_job(run_helper(command, Deadline::after(2 * options.probe_timeout + kStartAndEnd)));
}

json read_gpu_job(const HelperResult& result) {
  json job = {{"said", json::array()}, {"problem", ""}};
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    const auto begin = line.find('{');  // after the launcher's label of the rank
    if (begin == std::string::npos) continue;
    json said = json::parse(line.substr(begin), nullptr, false);
    if (said.is_object() && said.contains("what")) job["said"].push_back(std::move(said));
  }
  if (!result.ending) {
    job["problem"] = "the job was killed when its time was over";
  } else if (!result.ending->ok() && (said_of(job, "death").empty() || result.ending->exit_code() != 128 + SIGKILL)) {
    const std::string& err = result.err;
    job["problem"] = fmt::format("it {}: {}", result.ending->describe(),
                                 printable(err.substr(err.size() - std::min(err.size(), kMostWords)), kMostWords));
  }
  return job;
}

Findings gpu_trial_findings(const json& trial) {
  try {
    Findings findings;
    const std::size_t world = add_models(trial, findings);
    add_sums(trial, world, findings);
    add_steps(trial, world, findings);
    if (const auto deaths = said_of(trial, "death"); !deaths.empty()) {
      add_death(deaths, world, findings);
    } else {
      findings.push_back({kTogether, "all of them",
                          printable("the job did not finish: " + job_problem(trial), 2 * kMostWords), Health::problem,
                          kHangRemedy});
    }
    return findings;
  } catch (const json::exception& error) {
    return {{kTogether, "lockstep-probe", fmt::format("the answer of lockstep-probe can't be used: {}", error.what()),
             Health::problem, "install all of lockstep again: the launcher and lockstep-probe must be of one build"}};
  }
}

}  // namespace lockstep::launcher::doctor
