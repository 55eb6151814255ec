#include "runtime/base/plugin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "runtime/base/error.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Plugins : public ::testing::Test {
 protected:
  Plugins() {
    std::string name = ::testing::TempDir() + "plugins-XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~Plugins() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& name, const std::string& content) {
    std::ofstream(folder_ + "/liblockstep_" + name + ".so", std::ios::binary) << content;
  }
  LoadedPlugin load(const std::string& name) {
    const std::vector<std::string> folders = {folder_ + "/none", folder_};
    return load_plugin(name, folders, "stamp of this build");
  }

  std::string folder_;
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
  EXPECT_THAT(plugin.problem, AllOf(HasSubstr(folder_ + "/liblockstep_x.so"), HasSubstr("'stamp of another'"),
                                    HasSubstr("'stamp of this build'")));
}

TEST_F(Plugins, WhatHasNoStampIsRefusedBeforeItRuns) {
  write("x", "no stamp");
  EXPECT_THAT(load("x").problem, HasSubstr("is no plug-in of lockstep"));
  write("y", std::string(kPluginStampMark) + "never ends");
  EXPECT_THAT(load("y").problem, HasSubstr("is no plug-in of lockstep"));
}

TEST_F(Plugins, AFileThatIsNoLibraryIsSaidInTheLoadersWords) {
  write("x", marked("stamp of this build"));
  const LoadedPlugin plugin = load("x");
  EXPECT_EQ(plugin.handle, nullptr);
  EXPECT_THAT(plugin.problem, AllOf(HasSubstr("can't be loaded"), HasSubstr(plugin.path)));
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
  EXPECT_THAT(std::string(build_stamp()), HasSubstr("0."));
  EXPECT_GT(build_stamp().size(), 20u);
}

TEST(PluginStamp, AFileThatIsNotThereIsASystemError) { EXPECT_THROW(stamp_of_file("/no/such/file"), SystemError); }

TEST(PluginModule, IsThisProgram) { EXPECT_THAT(path_of_this_module(), HasSubstr("unit_base")); }

}  // namespace
}  // namespace lockstep
