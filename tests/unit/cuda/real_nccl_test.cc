// SPDX-License-Identifier: Apache-2.0
// The real NCCL, where no driver is: its functions are there, what needs no GPU works, and what needs one says so at
// once. Built twice: alone, and into a program that has functions of NCCL's and CUDA's names of its own, each of which
// ends the process (tests/fakes/foreign_names.cmake).
//
// NCCL is what LOCKSTEP_NCCL_LIB names, else where it is always looked for; scripts/check-nccl tries several.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/device/device_runtime.h"
#include "runtime/comm/nccl/communicator.h"
#include "tests/support/wait_until.h"

namespace lockstep::nccl::real_nccl_test {
namespace {

using lockstep::testing::wait_until;
using ::testing::AllOf;
using ::testing::HasSubstr;

class RealNccl : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      // The plug-in for real GPUs, with the CUDA runtime that is linked into it.
      if (device_runtime(DeviceKind::cuda).count() > 0) GTEST_SKIP() << "a GPU is here: scripts/test-gpu does more";
    } catch (const BackendUnavailable& why) {
      GTEST_SKIP() << why.what();
    }
    try {
      api_.emplace(load_api(library_candidates(Environment::of_process())));
    } catch (const BackendUnavailable& why) {
      if (Environment::of_process().get("LOCKSTEP_NCCL_LIB")) FAIL() << why.what();
      GTEST_SKIP() << why.what();
    }
    std::printf("NCCL %s from %s\n", version_text(api_->version).c_str(), api_->library.path().c_str());
  }
  std::optional<Api> api_;
};

TEST_F(RealNccl, MakesAnId) {
  ncclUniqueId id{};
  ASSERT_EQ(api_->get_unique_id(&id), ncclSuccess) << api_->describe(ncclSystemError, nullptr);
  EXPECT_NE(std::count(std::begin(id.internal), std::end(id.internal), 0),
            static_cast<std::ptrdiff_t>(sizeof id.internal));
}

TEST_F(RealNccl, SaysWhyItHasNoCommunicator) {
  ncclUniqueId id{};
  ASSERT_EQ(api_->get_unique_id(&id), ncclSuccess);
  Communicator communicator(*api_, {.rank = 0, .size = 1, .name = "test"});
  std::string said;
  try {
    communicator.begin(id);
    ncclResult_t state = ncclInProgress;
    EXPECT_TRUE(wait_until([&] { return (state = communicator.state()) != ncclInProgress; }));
    communicator.call("ncclCommGetAsyncError", state);
  } catch (const CallFailed& error) {
    EXPECT_NE(error.result(), ncclSuccess);
    said = error.what();
  }
  EXPECT_THAT(said, AllOf(HasSubstr("nccl"), HasSubstr("cuda"))) << "in NCCL's words";
}

// ncclBcast goes on to ncclBroadcast through the dynamic linker.
TEST_F(RealNccl, CallsItsOwnFunctions) {
  void* const library = ::dlopen(api_->library.path().c_str(), RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(library, nullptr) << ::dlerror();
  const auto broadcast = reinterpret_cast<decltype(&ncclBcast)>(::dlsym(library, "ncclBcast"));
  ASSERT_NE(broadcast, nullptr) << ::dlerror();
  EXPECT_EQ(broadcast(nullptr, 1, ncclFloat32, 0, nullptr, nullptr), ncclInvalidArgument) << "without a communicator";
  ::dlclose(library);
}

}  // namespace
}  // namespace lockstep::nccl::real_nccl_test
