// A plug-in's file as users may come to have it: missing, of another build, without the library that it needs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "runtime/base/plugin.h"
#include "runtime/comm/init/plugins.h"
#include "tests/support/rank_processes.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class PluginFile : public ::testing::Test {
 protected:
  PluginFile() {
    std::string name = ::testing::TempDir() + "plugin-file-XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~PluginFile() override { fs::remove_all(folder_); }

  // The plug-in, with `from` in its file replaced by `to`, which is as long.
  void put_with(const std::string& from, const std::string& to) {
    ASSERT_EQ(from.size(), to.size());
    std::string bytes = content_of(PLUGIN_FILE);
    const std::size_t at = bytes.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    bytes.replace(at, from.size(), to);
    std::ofstream(folder_ + "/liblockstep_gloo.so", std::ios::binary) << bytes;
  }
  // What a rank that asks for gloo says.
  std::string refusal(Variables environment) {
    environment["CONFORMANCE_BACKEND"] = "gloo";
    RankProcesses ranks(2, {.command = {RANK_PROGRAM, "suite"}, .environment = std::move(environment)});
    std::string text;
    for (const Result& result : ranks.wait()) {
      EXPECT_EQ(result.exit_code, 1);
      text = result.err;
    }
    return text;
  }

  std::string folder_;
};

TEST_F(PluginFile, AnotherBuildsIsRefusedWithBothStamps) {
  const std::string own(build_stamp());
  std::string other = own;
  other.back() = other.back() == '0' ? '1' : '0';
  put_with(own, other);
  EXPECT_THAT(refusal({{"LOCKSTEP_PLUGIN_PATH", folder_}}),
              AllOf(HasSubstr("backend 'gloo' was asked for"), HasSubstr(folder_ + "/liblockstep_gloo.so"),
                    HasSubstr("'" + own + "'"), HasSubstr("'" + other + "'"), HasSubstr("build lockstep")));
}

TEST_F(PluginFile, AMissingLibraryIsASentenceWithItsPackage) {
  put_with("libgloo.so", "libgl0o.so");
  EXPECT_THAT(refusal({{"LOCKSTEP_PLUGIN_PATH", folder_}}),
              AllOf(HasSubstr("needs libgl0o.so"), HasSubstr("does not have"), HasSubstr("install libgloo0")));
}

TEST_F(PluginFile, AMissingPlugInIsASentenceWithWhatToDo) {
  // A library without a plug-in beside it.
  const fs::path core = CORE_FILE;
  fs::create_directory(folder_ + "/lib");
  for (const auto& entry : fs::directory_iterator(core.parent_path())) {
    if (!entry.path().filename().string().starts_with("liblockstep.so.")) continue;
    fs::copy_file(fs::canonical(entry.path()), folder_ + "/lib/" + entry.path().filename().string());
  }
  EXPECT_THAT(refusal({{"LD_LIBRARY_PATH", folder_ + "/lib"}}),
              AllOf(HasSubstr("liblockstep_gloo.so is not in " + folder_ + "/lib"), HasSubstr("install libgloo-dev"),
                    HasSubstr("LOCKSTEP_GLOO=ON"), HasSubstr("LOCKSTEP_PLUGIN_PATH")));
}

TEST(Plugins, AreListedWithTheirFileOrTheReason) {
  bool gloo = false;
  for (const PluginStatus& plugin : plugins()) {
    EXPECT_EQ(plugin.available, plugin.reason.empty()) << plugin.name << ": " << plugin.reason;
    if (plugin.name != "gloo") continue;
    gloo = true;
    EXPECT_TRUE(plugin.available) << plugin.reason;
    EXPECT_EQ(fs::canonical(plugin.path), fs::canonical(PLUGIN_FILE));
  }
  EXPECT_TRUE(gloo);
}

}  // namespace
}  // namespace lockstep::testing
