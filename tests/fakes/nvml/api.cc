// SPDX-License-Identifier: Apache-2.0
// An NVML without a GPU: libfake_nvml.so, to be named by LOCKSTEP_NVML_LIB. Its GPUs are what LOCKSTEP_FAKE_NVML says,
// "USE PID:BYTES PID:BYTES...;USE...", where a USE of "-" and BYTES of "-" are not available; "fails" is a driver that
// does not answer.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "launcher/probe/nvml.h"

namespace {

using namespace lockstep::probe;

constexpr int kNotSupported = 3;

std::vector<std::string> gpus() {
  const char* const said = std::getenv("LOCKSTEP_FAKE_NVML");
  std::vector<std::string> all;
  std::istringstream text(said == nullptr ? "" : said);
  for (std::string one; std::getline(text, one, ';');) all.push_back(one);
  return all;
}

std::size_t index_of(nvml::Device device) { return reinterpret_cast<std::size_t>(device) - 1; }

}  // namespace

extern "C" {

int nvmlInit_v2() { return gpus() == std::vector<std::string>{"fails"} ? 9 : nvml::kSuccess; }
const char* nvmlErrorString(int result) { return result == 9 ? "Driver Not Loaded" : "Not Supported"; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(gpus().size());
  return nvml::kSuccess;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvml::Device* device) {
  *device = reinterpret_cast<nvml::Device>(std::size_t{index} + 1);
  return nvml::kSuccess;
}
int nvmlDeviceGetUUID(nvml::Device device, char* uuid, unsigned bytes) {
  std::snprintf(uuid, bytes, "GPU-fake-%zu", index_of(device));
  return nvml::kSuccess;
}
int nvmlDeviceGetUtilizationRates(nvml::Device device, nvml::Utilization* utilization) {
  const std::string said = gpus().at(index_of(device));
  if (said.starts_with("-")) return kNotSupported;
  utilization->gpu = static_cast<unsigned>(std::stoul(said));
  return nvml::kSuccess;
}
// As a driver on which processes start all the time: too little room, whatever it is, the first time.
int nvmlDeviceGetComputeRunningProcesses_v3(nvml::Device device, unsigned* count, nvml::ProcessInfo* found) {
  static bool had_room = false;
  if (!std::exchange(had_room, true)) return nvml::kInsufficientSize;
  std::istringstream text(gpus().at(index_of(device)));
  std::string word;
  text >> word;
  unsigned number = 0;
  for (; text >> word; ++number) {
    const auto colon = word.find(':');
    found[number].pid = static_cast<unsigned>(std::stoul(word.substr(0, colon)));
    const std::string bytes = word.substr(colon + 1);
    found[number].used_memory = bytes == "-" ? nvml::kNotAvailable : std::stoull(bytes);
  }
  *count = number;
  return nvml::kSuccess;
}

}  // extern "C"
