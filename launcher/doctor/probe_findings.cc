// SPDX-License-Identifier: Apache-2.0
#include "launcher/doctor/probe_findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "launcher/process/spawn.h"

namespace lockstep::launcher::doctor {
namespace {

constexpr const char* kBackends = "backends";
constexpr const char* kPlugins = "plug-ins";
constexpr const char* kInstallAgain =
    "install lockstep again, all of it: the launcher, lockstep-probe and liblockstep.so must be of one build";

// Returns the start of a text of unknown length, in one line.
std::string excerpt(std::string_view text) {
  constexpr std::size_t kMost = 200;
  std::string line(text.substr(0, kMost));
  while (!line.empty() && line.back() == '\n') line.pop_back();
  std::replace_if(
      line.begin(), line.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  return text.size() > kMost ? line + "..." : line;
}

ProbeAnswer without_answer(std::string what, std::string remedy) {
  return {.json = nullptr,
          .findings = {{kBackends, "lockstep-probe", std::move(what), Health::problem, std::move(remedy)}}};
}

void add_backends(const nlohmann::json& probe, Findings& findings) {
  int most = 0;
  for (const auto& backend : probe.at("backends")) {
    const int ranks = backend.at("ranks_tried").get<int>();
    const auto name = backend.at("name").get<std::string>();
    most = std::max(most, ranks);
    if (ranks > 0) {
      findings.push_back(
          {kBackends, name, ranks == 1 ? "works for a single rank" : fmt::format("works, tried with {} ranks", ranks)});
    } else if (backend.at("tried").get<bool>()) {
      findings.push_back(
          {kBackends, name, "does not work here: " + backend.at("reason").get<std::string>(), Health::note});
    } else {
      findings.push_back({kBackends, name, "not tried: " + backend.at("reason").get<std::string>()});
    }
  }
  if (most >= 2) return;
  findings.push_back({kBackends, "any", "no backend serves two ranks on this host", Health::problem,
                      most == 1 ? "run one rank, or correct the problems above" : "correct the problems above"});
}

void add_plugins(const nlohmann::json& probe, Findings& findings) {
  for (const auto& plugin : probe.at("plugins")) {
    const bool usable = plugin.at("usable").get<bool>();
    findings.push_back(
        {kPlugins, plugin.at("name").get<std::string>(),
         usable ? plugin.at("path").get<std::string>() : "not here: " + plugin.at("reason").get<std::string>()});
  }
}

// Checks that `probe` has the fields that gpu_findings() reads.
void check_devices(const nlohmann::json& probe) {
  for (const auto& device : probe.at("devices")) {
    device.at("name").get_ref<const std::string&>();
    if (!device.contains("uuid")) continue;
    for (const auto* text : {"gpu", "uuid", "compute_capability"}) device.at(text).get_ref<const std::string&>();
    device.at("memory_bytes").get<std::uint64_t>();
    for (const auto* number : {"driver_cuda_version", "runtime_cuda_version"}) device.at(number).get<int>();
  }
  if (probe.contains("no_gpu")) probe.at("no_gpu").get_ref<const std::string&>();
}

constexpr const char* kFirstGpu = "cuda:0";

bool has_gpu(const nlohmann::json& probe) {
  const auto& devices = probe.at("devices");
  return std::any_of(devices.begin(), devices.end(), [](const auto& device) { return device.at("name") == kFirstGpu; });
}

}  // namespace

ProbeAnswer read_probe(const std::string& path, const HelperResult& result, std::chrono::milliseconds limit) {
  if (!result.ending) {
    return without_answer(
        fmt::format("{} gave no answer within {} s and was killed{}", path, static_cast<double>(limit.count()) / 1000,
                    result.err.empty() ? "" : "; it said: " + excerpt(result.err)),
        "a driver or library hangs; run the probe by hand: " + path);
  }
  if (!result.ending->ok()) {
    return without_answer(
        fmt::format("{} {}{}", path, result.ending->describe(), result.err.empty() ? "" : ": " + excerpt(result.err)),
        kInstallAgain);
  }
  ProbeAnswer answer;
  answer.json = nlohmann::json::parse(result.out, nullptr, false);
  try {
    if (answer.json.is_discarded()) throw InvalidArgument("it is not JSON");
    const auto version = answer.json.at("lockstep").get<std::string>();
    if (version != LOCKSTEP_VERSION) {
      throw InvalidArgument(fmt::format(
          "lockstep-probe is of version {}, but this launcher is of version {}; install both from one build", version,
          LOCKSTEP_VERSION));
    }
    add_backends(answer.json, answer.findings);
    add_plugins(answer.json, answer.findings);
    check_devices(answer.json);
    return answer;
  } catch (const std::exception& error) {  // an Error, or a type error of the JSON library
    return without_answer(
        fmt::format("the answer of {} can't be used: {}; it begins: '{}'", path, error.what(), excerpt(result.out)),
        kInstallAgain);
  }
}

nlohmann::json read_tensors(const HelperResult& result, std::chrono::milliseconds limit) {
  const auto failed = [](std::string reason) {
    return nlohmann::json{
        {"device", kFirstGpu}, {"tried", true}, {"operations", 0}, {"compared", 0}, {"reason", std::move(reason)}};
  };
  if (!result.ending) {
    return failed(fmt::format("the kernels gave no answer within {} s: a kernel or the driver hangs",
                              static_cast<double>(limit.count()) / 1000));
  }
  if (!result.ending->ok()) {
    return failed(fmt::format("the process that tried the kernels {}{}", result.ending->describe(),
                              result.err.empty() ? "" : ": " + excerpt(result.err)));
  }
  const auto answer = nlohmann::json::parse(result.out, nullptr, false);
  try {
    const auto& tensors = answer.at("tensors");
    for (const auto* text : {"device", "reason"}) tensors.at(text).get_ref<const std::string&>();
    for (const auto* number : {"operations", "compared"}) tensors.at(number).get<int>();
    tensors.at("tried").get<bool>();
    return tensors;
  } catch (const nlohmann::json::exception& error) {
    return failed(fmt::format("the answer of `lockstep-probe tensors` can't be used: {}", error.what()));
  }
}

ProbeAnswer ask_probe(const std::string& path, std::chrono::milliseconds limit) {
  try {
    ProbeAnswer answer = read_probe(path, run_helper({path}, Deadline::after(limit)), limit);
    if (!answer.json.is_null() && has_gpu(answer.json)) {
      answer.json["tensors"] = read_tensors(run_helper({path, "tensors"}, Deadline::after(limit)), limit);
    }
    return answer;
  } catch (const ExecError& error) {
    return without_answer(error.what(), kInstallAgain);
  }
}

}  // namespace lockstep::launcher::doctor
