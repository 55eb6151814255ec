// SPDX-License-Identifier: Apache-2.0
#include "runtime/store/secret.h"

#include <fcntl.h>
#include <gmock/gmock.h>
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
#include "tests/support/temporary_folder.h"

namespace lockstep::store::secret_test {
namespace {

using lockstep::testing::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

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

TEST(Secret, TellsWhatIsWrongAndNotWhatItIs) {
  const std::string shorter = kHex.substr(1);
  EXPECT_THAT(error_of([&] { Secret::parse(shorter); }),
              AllOf(HasSubstr("64 hex digits"), HasSubstr("63 characters"), Not(HasSubstr(shorter.substr(0, 8)))));
  std::string wrong = kHex;
  wrong[6] = 'g';
  EXPECT_THAT(error_of([&] { Secret::parse(wrong); }),
              AllOf(HasSubstr("character 7"), Not(HasSubstr(wrong.substr(0, 7)))));
  EXPECT_THAT(error_of([&] {
                Secret::of_environment(Environment({{"LOCKSTEP_STORE_SECRET", wrong}}));
              }),
              AllOf(HasSubstr("LOCKSTEP_STORE_SECRET:"), Not(HasSubstr(wrong.substr(0, 7)))));
}

TEST(Secret, IsTakenFromTheEnvironment) {
  EXPECT_EQ(Secret::of_environment(Environment()), std::nullopt);
  EXPECT_EQ(Secret::of_environment(Environment({{"LOCKSTEP_STORE_SECRET", kHex}})), Secret::parse(kHex));
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
  std::string refusal() {
    return error_of([this] { read(); });
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

TEST_F(SecretFile, ThatOthersMayReadIsRefused) {
  for (const mode_t mode : {0640, 0604, 0620, 0602, 0610}) {
    write(kHex, mode);
    EXPECT_THAT(refusal(), AllOf(HasSubstr(path_.string()), HasSubstr("chmod 600"), Not(HasSubstr(kHex.substr(0, 8)))));
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
  EXPECT_THAT(refusal(), HasSubstr("belongs to user 4711"));
}

TEST_F(SecretFile, ThatIsNoSecretIsRefused) {
  EXPECT_THAT(refusal(), AllOf(HasSubstr(path_.string()), HasSubstr("No such file")));
  write("", 0600);
  EXPECT_THAT(refusal(), HasSubstr("0 characters"));
  write(kHex + "00", 0600);
  EXPECT_THAT(refusal(), HasSubstr("66 characters"));
  write(kHex + "\n" + std::string(10000, 'x'), 0600);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("hex digits"), Not(HasSubstr("xxx"))));
}

TEST_F(SecretFile, ThatIsAPipeHoldsNobodyUp) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(refusal(), HasSubstr("not a regular file"));
}

}  // namespace
}  // namespace lockstep::store::secret_test
