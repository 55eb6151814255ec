// SPDX-License-Identifier: Apache-2.0
// Files, descriptors and libraries.
#include <dlfcn.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/base/plugin.h"
#include "runtime/base/regular_file.h"
#include "runtime/base/symbol_clash.h"
#include "runtime/base/unique_fd.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::regular_file_test {
namespace {

namespace fs = std::filesystem;
using lockstep::testing::errno_of;
using lockstep::testing::error_of;
using lockstep::testing::expect_text;
using ::testing::ElementsAre;

class RegularFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(folder_ / "file") << "precious";
    fs::create_symlink("file", folder_ / "link");
    ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  }
  const lockstep::testing::TemporaryFolder folder_;
};

TEST_F(RegularFile, IsOpenedAndNothingElseIs) {
  EXPECT_TRUE(open_regular(folder_ / "file", O_RDONLY));
  EXPECT_TRUE(open_regular(folder_ / "link", O_RDONLY));
  EXPECT_TRUE(open_regular(folder_ / "new", O_WRONLY | O_CREAT | O_NOFOLLOW));
  EXPECT_FALSE(open_regular(folder_ / "none", O_RDONLY));
  EXPECT_EQ(errno, ENOENT);
  constexpr int kOwn = O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW;
  for (const int flags : {O_RDONLY | O_NOFOLLOW, O_RDWR | O_NOFOLLOW, kOwn}) {
    expect_text(error_of([&] { open_regular(folder_ / "link", flags); }), {"link' is a symbolic link"});
    expect_text(error_of([&] { open_regular(folder_ / "pipe", flags); }), {"pipe' is a pipe"});
    expect_text(error_of([&] { open_regular(folder_, flags); }), {"is a folder"});
    expect_text(error_of([&] { open_regular("/dev/null", flags); }), {"'/dev/null' is a device"});
  }
  std::string text;
  std::ifstream(folder_ / "file") >> text;
  EXPECT_EQ(text, "precious");
}

TEST_F(RegularFile, IsReadToALimit) {
  EXPECT_EQ(read_regular(folder_ / "link", 8), "precious");
  expect_text(error_of([&] { read_regular(folder_ / "file", 7); }), {"more than 7 bytes"});
  expect_text(error_of([] { read_regular("/dev/zero", 7); }), {"is a device"});
  EXPECT_EQ(errno_of([&] { read_regular(folder_ / "none", 7); }), ENOENT);
}

int open_null() { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }
bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0 || errno != EBADF; }

TEST(UniqueFd, ClosesAtTheEndWhatItHasNotGivenAway) {
  UniqueFd empty;
  EXPECT_FALSE(empty);
  EXPECT_EQ(empty.get(), -1);
  empty.reset();
  int number = -1;
  {
    UniqueFd first(open_null());
    ASSERT_TRUE(first);
    number = first.release();
  }
  EXPECT_TRUE(is_open(number)) << "it was given away";
  { const UniqueFd again(number); }
  EXPECT_FALSE(is_open(number));
}

TEST(UniqueFd, MovesOwnership) {
  UniqueFd first(open_null());
  const int number = first.get();
  UniqueFd second(std::move(first));
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): what a moved-from descriptor holds is the test
  EXPECT_EQ(second.get(), number);
  UniqueFd third(open_null());
  const int replaced = third.get();
  third = std::move(second);
  EXPECT_EQ(third.get(), number);
  EXPECT_FALSE(is_open(replaced));
  UniqueFd& alias = third;
  third = std::move(alias);
  EXPECT_TRUE(is_open(number));
  third.reset();
  EXPECT_FALSE(is_open(number));
}

// A program that was started as `program <&- >&- 2>&-`.
TEST(UniqueFd, LeavesTheNumbersOfClosedStreamsAlone) {
  EXPECT_EXIT(
      {
        for (int stream = 0; stream < 3; ++stream) ::close(stream);
        const UniqueFd made(open_null());
        UniqueFd set;
        set.reset(open_null());
        const UniqueFd copy = duplicate(made.get());
        const UniqueFd inherited(::open("/dev/null", O_RDONLY));  // NOLINT(android-cloexec-open)
        bool right = made.get() > 2 && set.get() > 2 && copy.get() > 2 && inherited.get() > 2;
        for (int stream = 0; stream < 3; ++stream) right = right && !is_open(stream);
        right = right && ::fcntl(made.get(), F_GETFD) == FD_CLOEXEC && ::fcntl(inherited.get(), F_GETFD) == 0;
        ::_exit(right ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

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

TEST_F(Plugins, AnotherBuildsOrWhatIsNoneIsRefusedBeforeItRuns) {
  const std::pair<std::string, std::vector<std::string>> cases[] = {
      {marked("stamp of another"), {"'stamp of another'", "'stamp of this build'"}},
      {"no stamp", {"is not a plug-in of lockstep"}},
      {std::string(kPluginStampMark) + "never ends", {"is not a plug-in of lockstep"}},
      {marked("stamp of this build"), {"can't be loaded"}}};  // it is no library
  for (const auto& [content, problems] : cases) {
    write("x", content);
    const LoadedPlugin plugin = load("x");
    EXPECT_EQ(plugin.handle, nullptr);
    EXPECT_EQ(plugin.missing_library, "");
    for (const std::string& problem : problems) expect_text(plugin.problem, {problem, folder_ + "/liblockstep_x.so"});
  }
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
}  // namespace lockstep::regular_file_test
