// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <gmock/gmock.h>

#include "lockstep/base/error.h"
#include "runtime/tensor/kernels.h"

// The plug-in that nvcc has made: it loads where there is no GPU, and says why it has none.
namespace lockstep::real_plugin_test {
namespace {

TEST(RealKernels, SayWhyThereAreNone) {
  void* const plugin = dlopen(PLUGIN_FILE, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(plugin, nullptr) << dlerror();
  const auto kernels_of = reinterpret_cast<decltype(&lockstep_plugin_kernels)>(dlsym(plugin, kPluginKernelsSymbol));
  ASSERT_NE(kernels_of, nullptr);
  try {
    Kernels* const kernels = kernels_of(0);
    EXPECT_EQ(kernels->stream().device, (DeviceId{DeviceKind::cuda, 0}));
    EXPECT_EQ(kernels_of(0), kernels);
  } catch (const BackendUnavailable& error) {
    EXPECT_THAT(error.what(), ::testing::StartsWith("device cuda:0: "));
  }
}

}  // namespace
}  // namespace lockstep::real_plugin_test
