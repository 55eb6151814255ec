// SPDX-License-Identifier: Apache-2.0
// A plug-in's file as users may come to have it: missing, of another build, without the library that it needs.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "runtime/base/plugin.h"
#include "runtime/comm/init/plugins.h"
#include "tests/support/error_of.h"
#include "tests/support/process.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::plugin_file_test {
namespace {

namespace fs = std::filesystem;

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class PluginFile : public ::testing::Test {
 protected:
  // The plug-in, with `from` in its file replaced by `to`, which is as long.
  void put_with(const std::string& from, const std::string& to) {
    ASSERT_EQ(from.size(), to.size());
    std::string bytes = content_of(PLUGIN_FILE);
    const std::size_t at = bytes.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    bytes.replace(at, from.size(), to);
    temporary_.write("liblockstep_mpi.so", bytes);
  }
  // Why a process can't use it.
  static std::string refusal(const Variables& environment) {
    const Result result = Process({.command = {PROBE}, .environment = environment}).wait();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const auto answer = nlohmann::json::parse(result.out);
    for (const auto& plugin : answer.at("plugins")) {
      if (plugin.at("name") == "mpi") return plugin.at("reason");
    }
    return "";
  }

  const TemporaryFolder temporary_;
  const std::string folder_ = temporary_;
};

TEST_F(PluginFile, AnotherBuildsIsRefusedWithBothStamps) {
  const std::string own(build_stamp());
  std::string other = own;
  other.back() = other.back() == '0' ? '1' : '0';
  put_with(own, other);
  expect_text(refusal({{"LOCKSTEP_PLUGIN_PATH", folder_}}), {"plug-in 'mpi': ", folder_ + "/liblockstep_mpi.so",
                                                             "'" + own + "'", "'" + other + "'", "build lockstep"});
}

TEST_F(PluginFile, AMissingLibraryIsASentenceWithItsPackage) {
  put_with("libmpi.so", "libmp1.so");
  expect_text(refusal({{"LOCKSTEP_PLUGIN_PATH", folder_}}),
              {"needs libmp1.so", "does not have", "install libopenmpi3"});
}

TEST_F(PluginFile, AMissingPlugInIsASentenceWithWhatToDo) {
  // A library without a plug-in beside it.
  const fs::path core = CORE_FILE;
  fs::create_directory(folder_ + "/lib");
  for (const auto& entry : fs::directory_iterator(core.parent_path())) {
    if (!entry.path().filename().string().starts_with("liblockstep.so.")) continue;
    fs::copy_file(fs::canonical(entry.path()), folder_ + "/lib/" + entry.path().filename().string());
  }
  expect_text(refusal({{"LD_LIBRARY_PATH", folder_ + "/lib"}}),
              {"liblockstep_mpi.so is not in " + folder_ + "/lib", "which takes libopenmpi-dev", "LOCKSTEP_MPI=ON",
               "LOCKSTEP_PLUGIN_PATH"});
}

TEST(Plugins, AreListedWithTheirFileOrTheReason) {
  bool mpi = false;
  for (const PluginStatus& plugin : plugins()) {
    EXPECT_EQ(plugin.available, plugin.reason.empty()) << plugin.name << ": " << plugin.reason;
    if (plugin.name != "mpi") continue;
    mpi = true;
    EXPECT_TRUE(plugin.available) << plugin.reason;
    EXPECT_EQ(fs::canonical(plugin.path), fs::canonical(PLUGIN_FILE));
  }
  EXPECT_TRUE(mpi);
}

}  // namespace
}  // namespace lockstep::testing::plugin_file_test
