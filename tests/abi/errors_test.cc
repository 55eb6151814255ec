// SPDX-License-Identifier: Apache-2.0
// An error thrown by one shared library is caught by its type in another: between plug-in, liblockstep, liblockstep_nn
// and the program.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "lockstep/lockstep.h"
#include "tests/abi/thrower.h"

namespace lockstep::testing::errors_test {
namespace {

using ::testing::HasSubstr;

// As runtime/base/plugin.cc loads a plug-in: its names are its own.
const Thrower& thrower() {
  static const Thrower* const loaded = [] {
    void* const handle = dlopen(THROWER, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) throw std::runtime_error(dlerror());
    return static_cast<const Thrower*>(dlsym(handle, "lockstep_test_thrower"));
  }();
  return *loaded;
}

Cause lost_rank() {
  Cause cause;
  cause.kind = Cause::Kind::lost;
  cause.rank = 2;
  cause.host = "node7";
  cause.step = 41;
  cause.text = "rank 2 on node7 was ended by signal 9";
  return cause;
}

template <typename E>
void expect_caught(std::size_t kind) {
  SCOPED_TRACE(typeid(E).name());
  // One typeinfo: a handler and a dynamic_cast find it by its address, too.
  EXPECT_EQ(thrower().type(kind), &typeid(E));
  try {
    thrower().raise(kind, "of the plug-in", nullptr);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const E& error) {
    EXPECT_EQ(typeid(error), typeid(E)) << "a derived type";
    EXPECT_STREQ(error.what(), "of the plug-in");
    EXPECT_EQ(error.cause(), nullptr);
  }
}

template <std::size_t... I>
void expect_all_caught(std::index_sequence<I...>) {
  (expect_caught<std::tuple_element_t<I, Errors>>(I), ...);
}

TEST(AbiErrors, PluginThrowsAndProgramCatchesByType) {
  expect_all_caught(std::make_index_sequence<std::tuple_size_v<Errors>>());
}

TEST(AbiErrors, PluginThrowsPeerLostAndItsCauseArrives) {
  const Cause cause = lost_rank();
  try {
    thrower().raise(3, "", &cause);
    FAIL() << "nothing was thrown";
  } catch (const PeerLost& error) {
    ASSERT_NE(error.cause(), nullptr);
    EXPECT_EQ(*error.cause(), cause);
    EXPECT_EQ(error.what(), cause.text);
  }
}

TEST(AbiErrors, CoreThrowsAndPluginCatchesByType) {
  EXPECT_EQ(thrower().caught([] { throw_error(lost_rank()); }), "rank 2 on node7 was ended by signal 9|node7|41");
  EXPECT_EQ(thrower().caught([] { static_cast<void>(DeviceId::parse("tpu:0")); }), "another type");
}

// The program's own throw, through the plug-in's handler.
TEST(AbiErrors, ProgramThrowsAndPluginCatchesByType) {
  EXPECT_EQ(thrower().caught([] { throw make_error<PeerLost>(lost_rank()); }),
            "rank 2 on node7 was ended by signal 9|node7|41");
  EXPECT_EQ(thrower().caught([] { throw Timeout("late"); }), "another type");
}

TEST(AbiErrors, CoreAndProgramHaveOneTypeinfo) {
  try {
    throw_error(lost_rank());
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(&typeid(error), &typeid(PeerLost));
    EXPECT_NE(dynamic_cast<const PeerLost*>(&error), nullptr);
  }
}

TEST(AbiErrors, NnThrowsAndProgramCatchesByType) {
  try {
    static_cast<void>(matmul(Tensor::zeros({2, 3}), Tensor::zeros({2, 3})));
    FAIL() << "nothing was thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(&typeid(error), &typeid(InvalidArgument));
    EXPECT_THAT(error.what(), HasSubstr("matmul"));
  }
}

// liblockstep reads the file; the call is liblockstep_nn's.
TEST(AbiErrors, CoreThrowsThroughNnAndProgramCatchesByType) {
  nn::Linear layer(2, 2);
  try {
    load_weights(std::filesystem::path("/nonexistent/weights.safetensors"), layer);
    FAIL() << "nothing was thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(&typeid(error), &typeid(InvalidArgument));
    EXPECT_THAT(error.what(), HasSubstr("there is no such file"));
  }
}

}  // namespace
}  // namespace lockstep::testing::errors_test
