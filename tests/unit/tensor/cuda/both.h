// SPDX-License-Identifier: Apache-2.0
// An operation by the CPU's kernels and by a GPU's, on the same data.
//
// Arrays begin at odd elements, and around each lie elements that nobody may write; results are NaN, or all bits set,
// before.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/random.h"
#include "lockstep/device/device_runtime.h"
#include "runtime/tensor/kernels.h"

namespace lockstep::testing {

using std::chrono_literals::operator""s;

// Another order for another seed, where that can be had: over the fakes (on_fakes.cc), not on a GPU.
void order_threads_by(std::uint64_t seed);

inline constexpr DeviceId kGpu{DeviceKind::cuda, 0};

inline Kernels& gpu_kernels(int device = 0) {
  static const auto kernels_of = [] {
    void* const plugin = dlopen(PLUGIN_FILE, RTLD_NOW | RTLD_LOCAL);
    if (plugin == nullptr) throw std::runtime_error(dlerror());
    return reinterpret_cast<decltype(&lockstep_plugin_kernels)>(dlsym(plugin, kPluginKernelsSymbol));
  }();
  return *kernels_of(device);
}

inline void wait_for(Kernels& kernels) {
  device_runtime(DeviceKind::cuda).synchronize(kernels.stream(), Deadline::after(60s));
}
inline void wait_for_gpu() { wait_for(gpu_kernels()); }

inline std::vector<float> random_floats(std::int64_t count, std::uint64_t stream, float scale = 1) {
  Generator generator(7, stream);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = scale * (2 * generator.uniform() - 1);
  return values;
}
inline std::vector<std::int64_t> random_indices(std::int64_t count, std::uint64_t stream, std::int64_t limit) {
  Generator generator(8, stream);
  std::vector<std::int64_t> values(static_cast<std::size_t>(count));
  for (auto& value : values) value = static_cast<std::int64_t>(generator.below(static_cast<std::uint64_t>(limit)));
  return values;
}

// The arrays of one operation on one device.
class Arrays {
 public:
  // Arrays begin `offset` elements behind a multiple of 256 bytes.
  Arrays(Kernels& kernels, std::int64_t offset) : kernels_(kernels), offset_(offset) {}

  template <typename T>
  const T* in(const std::vector<T>& values) {
    return place(values, false);
  }
  // Holds `values` before, and is compared after.
  template <typename T>
  T* inout(const std::vector<T>& values) {
    return place(values, true);
  }
  template <typename T>
  T* out(std::int64_t count) {
    std::vector<T> values(static_cast<std::size_t>(count));
    if (count > 0) std::memset(values.data(), 0xff, values.size() * sizeof(T));
    return place(values, true);
  }
  // With `add` it holds what is added to.
  Into into(std::int64_t count, bool add) { return {add ? inout(random_floats(count, 99)) : out<float>(count), add}; }

  // The results, one after the other; expects that nothing around an array was written.
  std::vector<std::vector<std::byte>> results() {
    std::vector<std::vector<std::byte>> all;
    for (Array& array : arrays_) {
      std::vector<std::byte> bytes(array.bytes + 2 * kGuard + array.before);
      if (on_gpu()) {
        runtime().copy(bytes.data(), array.memory.get(), bytes.size(), kernels_.stream());
        wait_for(kernels_);
      } else {
        std::memcpy(bytes.data(), array.memory.get(), bytes.size());
      }
      const std::size_t first = kGuard + array.before;
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        if (i >= first && i < first + array.bytes) continue;
        EXPECT_EQ(bytes[i], kUntouched) << "byte " << static_cast<std::int64_t>(i - first) << " beside an array of "
                                        << array.bytes << (on_gpu() ? " on the GPU" : " on the CPU");
        if (bytes[i] != kUntouched) break;
      }
      if (!array.compared) continue;
      all.emplace_back(bytes.begin() + static_cast<std::ptrdiff_t>(first),
                       bytes.begin() + static_cast<std::ptrdiff_t>(first + array.bytes));
    }
    return all;
  }

 private:
  static constexpr std::size_t kGuard = 256;
  static constexpr std::byte kUntouched{0xa5};
  struct Array {
    std::shared_ptr<void> memory = {};
    std::size_t before = 0;
    std::size_t bytes = 0;
    bool compared = false;
  };

  bool on_gpu() const { return kernels_.stream().device.kind == DeviceKind::cuda; }
  DeviceRuntime& runtime() const { return device_runtime(kernels_.stream().device.kind); }

  template <typename T>
  T* place(const std::vector<T>& values, bool compared) {
    Array array{.before = static_cast<std::size_t>(offset_) * sizeof(T),
                .bytes = values.size() * sizeof(T),
                .compared = compared};
    std::vector<std::byte> bytes(array.bytes + 2 * kGuard + array.before, kUntouched);
    if (!values.empty()) std::memcpy(bytes.data() + kGuard + array.before, values.data(), array.bytes);
    array.memory = runtime().allocate(bytes.size(), kernels_.stream());
    runtime().copy(array.memory.get(), bytes.data(), bytes.size(), kernels_.stream());
    arrays_.push_back(array);
    return reinterpret_cast<T*>(static_cast<std::byte*>(array.memory.get()) + kGuard + array.before);
  }

  Kernels& kernels_;
  std::int64_t offset_;
  std::vector<Array> arrays_;
};

using Operation = std::function<void(Kernels&, Arrays&)>;

inline std::vector<std::vector<std::byte>> results_of(Kernels& kernels, std::int64_t offset,
                                                      const Operation& operation) {
  Arrays arrays(kernels, offset);
  operation(kernels, arrays);
  return arrays.results();
}

template <typename T>
void expect_near(const std::vector<std::byte>& got, const std::vector<std::byte>& wanted, double tolerance,
                 const std::string& where) {
  const auto value = [](const std::vector<std::byte>& bytes, std::size_t i) {
    T one;
    std::memcpy(&one, bytes.data() + i * sizeof(T), sizeof(T));
    return static_cast<double>(one);
  };
  for (std::size_t i = 0; i < got.size() / sizeof(T); ++i) {
    const double a = value(got, i), b = value(wanted, i);
    if ((std::isnan(a) && std::isnan(b)) || a == b) continue;
    ASSERT_LE(std::abs(a - b), tolerance * (1 + std::abs(b)))
        << where << ", element " << i << ": " << a << " and not " << b;
  }
}

// Expects of the GPU what the CPU gives: each result within its tolerance, relative to 1 + |value|; 0 is the same bits.
// And the same bits from the GPU whatever the order of its threads.
inline void expect_alike(const std::vector<double>& tolerances, const Operation& operation,
                         const std::string& where = "") {
  const auto wanted = results_of(cpu_kernels(), 0, operation);
  for (const std::int64_t offset : {0, 1}) {
    order_threads_by(1);
    const auto first = results_of(gpu_kernels(), offset, operation);
    order_threads_by(2);
    const auto second = results_of(gpu_kernels(), offset, operation);
    ASSERT_EQ(first.size(), wanted.size());
    ASSERT_EQ(first.size(), tolerances.size());
    for (std::size_t i = 0; i < first.size(); ++i) {
      const std::string what = where + " result " + std::to_string(i) + ", offset " + std::to_string(offset);
      ASSERT_EQ(first[i], second[i]) << what << ": another order of the threads gives other bits";
      if (tolerances[i] == 0) {
        ASSERT_EQ(first[i], wanted[i]) << what << ": not the bits of the CPU";
      } else if (tolerances[i] < 0) {  // of doubles
        expect_near<double>(first[i], wanted[i], -tolerances[i], what);
      } else {
        expect_near<float>(first[i], wanted[i], tolerances[i], what);
      }
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

}  // namespace lockstep::testing
