// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/regular_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::regular_file_test {
namespace {

namespace fs = std::filesystem;
using lockstep::testing::errno_of, lockstep::testing::error_of, lockstep::testing::expect_text;

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

}  // namespace
}  // namespace lockstep::regular_file_test
