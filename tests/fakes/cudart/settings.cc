// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/cudart/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <random>
#include <string_view>

#include "tests/fakes/cudart/fake_cuda.h"

namespace lockstep::fake_cuda {
namespace {

std::optional<std::uint64_t> number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::uint64_t number_of(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  if (text == nullptr) return otherwise;
  if (const auto value = number(text)) return *value;
  fmt::print(stderr, "fake CUDA: {}='{}' is not a number\n", name, text);
  std::_Exit(1);
}

std::optional<int> device_of(std::string_view entry, int present) {
  if (const auto index = number(entry)) {
    return *index < static_cast<std::uint64_t>(present) ? std::optional(static_cast<int>(*index)) : std::nullopt;
  }
  // A UUID may be cut short where it is still the only one.
  if (!entry.starts_with("GPU-")) return std::nullopt;
  std::optional<int> found;
  for (int i = 0; i < present; ++i) {
    if (!uuid_of(i).starts_with(entry)) continue;
    if (found) return std::nullopt;
    found = i;
  }
  return found;
}

}  // namespace

std::string uuid_of(int physical_index) { return fmt::format("GPU-fa6ec0da-0000-0000-0000-{:012x}", physical_index); }

std::vector<int> visible_devices(const std::string& text, int present) {
  std::vector<int> visible;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view entry = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), entry.size() + 1));
    const auto device = device_of(entry, present);
    if (!device) break;
    if (std::find(visible.begin(), visible.end(), *device) != visible.end()) return {};
    visible.push_back(*device);
  }
  return visible;
}

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
