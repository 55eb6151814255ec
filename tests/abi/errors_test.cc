// SPDX-License-Identifier: Apache-2.0
// An error thrown by one shared library is caught by its type in another: between plug-in, liblockstep, liblockstep_nn
// and the program.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "lockstep/lockstep.h"
#include "tests/abi/thrower.h"
#include "tests/support/error_of.h"

namespace lockstep::testing::errors_test {
namespace {

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
  const auto error = thrown_by<PeerLost>([&] { thrower().raise(3, "", &cause); });
  ASSERT_TRUE(error && error->cause() != nullptr);
  EXPECT_EQ(*error->cause(), cause);
  EXPECT_EQ(error->what(), cause.text);
}

// What liblockstep throws, and the program itself, through the plug-in's handler.
TEST(AbiErrors, CoreOrProgramThrowsAndPluginCatchesByType) {
  const std::string lost = "rank 2 on node7 was ended by signal 9|node7|41";
  EXPECT_EQ(thrower().caught([] { throw_error(lost_rank()); }), lost);
  EXPECT_EQ(thrower().caught([] { throw make_error<PeerLost>(lost_rank()); }), lost);
  EXPECT_EQ(thrower().caught([] { static_cast<void>(DeviceId::parse("tpu:0")); }), "another type");
  EXPECT_EQ(thrower().caught([] { throw Timeout("late"); }), "another type");
}

template <typename E, typename Call>
void expect_one_typeinfo(Call&& call) {
  try {
    call();
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(&typeid(error), &typeid(E)) << error.what();
    EXPECT_NE(dynamic_cast<const E*>(&error), nullptr);
  }
}

TEST(AbiErrors, LibrariesThrowAndProgramCatchesByType) {
  nn::Linear layer(2, 2);
  expect_one_typeinfo<PeerLost>([] { throw_error(lost_rank()); });
  expect_one_typeinfo<InvalidArgument>([] { static_cast<void>(matmul(Tensor::zeros({2, 3}), Tensor::zeros({2, 3}))); });
  // liblockstep reads the file; the call is liblockstep_nn's.
  expect_one_typeinfo<InvalidArgument>(
      [&] { load_weights(std::filesystem::path("/nonexistent/weights.safetensors"), layer); });
}

}  // namespace
}  // namespace lockstep::testing::errors_test
