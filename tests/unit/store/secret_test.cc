// SPDX-License-Identifier: Apache-2.0
#include "runtime/store/secret.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "lockstep/base/error.h"
#include "tests/support/error_of.h"
#include "tests/support/messages.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::store::secret_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_message;

const std::string kHex = "00112233445566778899aabbccddeeff0123456789abcdeffedcba9876543210";

TEST(Secret, IsItsHexDigits) {
  const Secret secret = Secret::parse(kHex);
  EXPECT_EQ(secret.hex(), kHex);
  EXPECT_EQ(secret.bytes()[1], std::byte{0x11});
  EXPECT_EQ(secret.bytes()[31], std::byte{0x10});
  std::string upper = kHex;
  for (char& c : upper) c = static_cast<char>(std::toupper(c));
  EXPECT_EQ(Secret::parse(upper), secret);
}

TEST(Secret, IsDrawnAnewEachTime) {
  const Secret one = Secret::random();
  EXPECT_FALSE(one == Secret::random());
  EXPECT_EQ(Secret::parse(one.hex()), one);
}

TEST(Secret, IsTakenFromTheEnvironmentOrRefusedWithoutSayingWhatItIs) {
  EXPECT_EQ(Secret::of_environment(Environment()), std::nullopt);
  const auto in_variable = [](const std::string& hex) {
    return Secret::of_environment(Environment({{"LOCKSTEP_STORE_SECRET", hex}}));
  };
  EXPECT_EQ(in_variable(kHex), Secret::parse(kHex));
  expect_message("store", "too short", error_of([&] { in_variable(kHex.substr(1)); }));
  std::string wrong = kHex;
  wrong[6] = 'g';
  expect_message("store", "no hex digit", error_of([&] { in_variable(wrong); }));
}

class SecretFile : public ::testing::Test {
 protected:
  void write(const std::string& text, mode_t mode) {
    std::ofstream(path_) << text;
    ASSERT_EQ(::chmod(path_.c_str(), mode), 0);
  }
  std::optional<Secret> read() {
    return Secret::of_environment(Environment({{"LOCKSTEP_STORE_SECRET_FILE", path_.string()}}));
  }
  // The whole message is on the page, with FILE for the file's path.
  void expect_refused(const char* what) {
    std::string said = error_of([this] { read(); });
    for (auto at = said.find(path_.string()); at != said.npos; at = said.find(path_.string())) {
      said.replace(at, path_.string().size(), "FILE");
    }
    expect_message("store", what, said);
  }

  const lockstep::testing::TemporaryFolder folder_;
  const std::filesystem::path path_ = folder_ / "secret";
};

TEST_F(SecretFile, IsReadWithOrWithoutALinesEnd) {
  for (const std::string end : {"", "\n", "\r\n"}) {
    write(kHex + end, 0600);
    EXPECT_EQ(read(), Secret::parse(kHex));
  }
  write(kHex, 0400);
  EXPECT_EQ(read(), Secret::parse(kHex));
}

TEST_F(SecretFile, ThatIsNoSecretOfTheUsersIsRefused) {
  expect_refused("no file");
  struct Case {
    const char* name;
    std::string text;
    mode_t mode = 0600;
  };
  for (const Case& test :
       {Case{"empty", ""}, Case{"too long", kHex + "00"}, Case{"much too long", kHex + "\n" + std::string(10000, 'x')},
        Case{"mode 640", kHex, 0640}, Case{"mode 604", kHex, 0604}, Case{"mode 620", kHex, 0620},
        Case{"mode 602", kHex, 0602}, Case{"mode 610", kHex, 0610}}) {
    write(test.text, test.mode);
    expect_refused(test.name);
  }
}

// As Kubernetes mounts a secret.
TEST_F(SecretFile, OnAReadOnlyMountMayHaveAnyMode) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to mount";
  write(kHex, 0644);
  // In a process of its own, whose mounts end with it.
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string folder = path_.parent_path().string();
    if (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount(folder.c_str(), folder.c_str(), nullptr, MS_BIND, nullptr) != 0 ||
        ::mount(nullptr, folder.c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr) != 0) {
      ::_exit(77);
    }
    try {
      ::_exit(read() == Secret::parse(kHex) ? 0 : 1);
    } catch (const Error&) {
      ::_exit(2);
    }
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "this container may not mount";
  EXPECT_EQ(status, 0);
}

TEST_F(SecretFile, OfSomebodyElseIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to give a file away";
  write(kHex, 0600);
  ASSERT_EQ(::chown(path_.c_str(), 4711, 0), 0);
  expect_refused("of user 4711");
}

TEST_F(SecretFile, ThatIsAPipeHoldsNobodyUp) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  expect_refused("a pipe");
}

}  // namespace
}  // namespace lockstep::store::secret_test
