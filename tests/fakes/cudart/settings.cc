// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/cudart/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <sstream>
#include <string_view>

#include "tests/fakes/cudart/fake_cuda.h"

namespace lockstep::fake_cuda {
namespace {

std::uint64_t number_of(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  if (text == nullptr) return otherwise;
  char* end = nullptr;
  const std::uint64_t value = std::strtoull(text, &end, 10);
  if (end != text && *end == 0) return value;
  fmt::print(stderr, "fake CUDA: {}='{}' is not a number\n", name, text);
  std::_Exit(1);
}

// What a value of CUDA_VISIBLE_DEVICES leaves of `present` devices: up to the first entry that names none, or none if
// an entry comes twice.
std::vector<int> visible_devices(const std::string& text, int present) {
  std::vector<int> visible;
  std::istringstream all(text);
  for (std::string entry; std::getline(all, entry, ',');) {
    int device = 0;
    while (device < present && entry != std::to_string(device) && entry != uuid_of(device)) ++device;
    if (device == present) break;
    if (std::find(visible.begin(), visible.end(), device) != visible.end()) return {};
    visible.push_back(device);
  }
  return visible;
}

}  // namespace

std::string uuid_of(int physical_index) { return fmt::format("GPU-fa6ec0da-0000-0000-0000-{:012x}", physical_index); }

Settings settings_of_process() {
  Settings settings;
  settings.device_bytes = number_of("LOCKSTEP_FAKE_GPU_MEMORY", std::uint64_t{1} << 30);
  settings.seed = number_of("LOCKSTEP_FAKE_SEED", std::random_device{}());
  settings.multiprocessors = static_cast<int>(number_of("LOCKSTEP_FAKE_MULTIPROCESSORS", 4));
  if (const char* const rules = std::getenv("LOCKSTEP_FAKE_CUDA")) settings.rules = rules;
  const char* const gpus = std::getenv("LOCKSTEP_FAKE_GPUS");
  if (gpus != nullptr && std::string_view(gpus) == "none") {
    settings.none = cudaErrorInsufficientDriver;
    return settings;
  }
  const int present = static_cast<int>(number_of("LOCKSTEP_FAKE_GPUS", 8));
  if (const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES")) {
    settings.visible = visible_devices(visible, present);
  } else {
    settings.visible.resize(static_cast<std::size_t>(present));
    std::iota(settings.visible.begin(), settings.visible.end(), 0);
  }
  if (settings.visible.empty()) settings.none = cudaErrorNoDevice;
  return settings;
}

}  // namespace lockstep::fake_cuda
