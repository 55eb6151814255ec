// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/plugin.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "lockstep/base/error.h"
#include "runtime/base/symbol_clash.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::plugin_test {
namespace {

using lockstep::testing::expect_text;
using ::testing::ElementsAre;

class Plugins : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& content) const {
    temporary_.write("liblockstep_" + name + ".so", content);
  }
  LoadedPlugin load(const std::string& name) {
    const std::vector<std::string> folders = {folder_ + "/none", folder_};
    return load_plugin(name, folders, "stamp of this build");
  }

  const lockstep::testing::TemporaryFolder temporary_;
  const std::string folder_ = temporary_;
};

std::string marked(const std::string& stamp) {
  return "some bytes" + std::string(kPluginStampMark) + stamp + std::string(1, '\0') + "more";
}

TEST_F(Plugins, OneThatIsNowhereIsSaidWithTheFolders) {
  const LoadedPlugin plugin = load("x");
  EXPECT_EQ(plugin.path, "");
  EXPECT_EQ(plugin.problem, "liblockstep_x.so is not in " + folder_ + "/none, " + folder_);
  EXPECT_THROW(plugin.symbol("any"), BackendUnavailable);
}

TEST_F(Plugins, AnotherBuildsIsRefusedWithBothStamps) {
  write("x", marked("stamp of another"));
  const LoadedPlugin plugin = load("x");
  EXPECT_EQ(plugin.handle, nullptr);
  expect_text(plugin.problem, {folder_ + "/liblockstep_x.so", "'stamp of another'", "'stamp of this build'"});
}

TEST_F(Plugins, WhatHasNoStampIsRefusedBeforeItRuns) {
  write("x", "no stamp");
  expect_text(load("x").problem, {"is not a plug-in of lockstep"});
  write("y", std::string(kPluginStampMark) + "never ends");
  expect_text(load("y").problem, {"is not a plug-in of lockstep"});
}

TEST_F(Plugins, AFileThatIsNoLibraryIsSaidInTheLoadersWords) {
  write("x", marked("stamp of this build"));
  const LoadedPlugin plugin = load("x");
  EXPECT_EQ(plugin.handle, nullptr);
  expect_text(plugin.problem, {"can't be loaded", plugin.path});
  EXPECT_EQ(plugin.missing_library, "");
}

TEST_F(Plugins, TheFirstFolderThatHasOneDecides) {
  std::filesystem::create_directory(folder_ + "/none");
  std::ofstream(folder_ + "/none/liblockstep_x.so") << marked("stamp of another");
  write("x", marked("stamp of this build"));
  EXPECT_EQ(load("x").path, folder_ + "/none/liblockstep_x.so");
}

TEST(PluginFolders, TheVariableThenBesideTheLibraryThenTheBuildTree) {
  Environment environment;
  EXPECT_THAT(plugin_folders(environment, "/opt/x/lib/liblockstep.so"), ElementsAre("/opt/x/lib"));
  EXPECT_THAT(plugin_folders(environment, "/build/bin/program"), ElementsAre("/build/bin", "/build/lib"));
  environment.set("LOCKSTEP_PLUGIN_PATH", "/a::/b:");
  EXPECT_THAT(plugin_folders(environment, "/opt/x/lib/liblockstep.so"), ElementsAre("/a", "/b", "/opt/x/lib"));
}

TEST(PluginStamp, OfThisBuildSaysVersionAndCompiler) {
  expect_text(build_stamp(), {"0."});
  EXPECT_GT(build_stamp().size(), 20u);
  EXPECT_THROW(stamp_of_file("/no/such/file"), SystemError);
  expect_text(path_of_this_module(), {"unit_base"});
}

TEST(SymbolClash, AFunctionOfTheLibraryItselfOrOfNobodyIsNone) {
  EXPECT_EQ(symbol_clash({.name = "gnu_get_libc_version", .library = "libc.so.6"}).file, "");
  const SymbolClash clash = symbol_clash({.name = "nobody_has_this", .library = "libm.so.6"});
  EXPECT_EQ(clash.file, "");
  EXPECT_EQ(clash.flags(), 0);
  EXPECT_EQ(clash.problem("Nobody's", "libm.so.6"), "");
}

TEST(SymbolClash, AFunctionOfAnotherFileIsOne) {
  SymbolClash clash = symbol_clash({.name = "gnu_get_libc_version", .library = "libnobody_has_this.so"});
  expect_text(clash.file, {"libc.so.6"});
  EXPECT_EQ(clash.flags(), RTLD_DEEPBIND);
  clash.allocator = "/opt/libjemalloc.so";
  EXPECT_EQ(clash.problem("Libc", "libx.so"),
            "this process has Libc in " + clash.file +
                " already, and libx.so can't be kept apart from it with the malloc of /opt/libjemalloc.so");
}

}  // namespace
}  // namespace lockstep::plugin_test
