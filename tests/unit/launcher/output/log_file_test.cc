// SPDX-License-Identifier: Apache-2.0
// A rank's log file where there is no room, and then is again.
#include "launcher/output/log_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "lockstep/base/error.h"

namespace lockstep::launcher::log_file_test {
namespace {

using ::testing::HasSubstr;

// This process writes no file beyond `bytes`, while it lives.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) {
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  ~FileLimit() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

class LogFileTest : public ::testing::Test {
 protected:
  ~LogFileTest() override { std::filesystem::remove(path_); }
  std::string content() const {
    std::ostringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }
  const std::string path_ = ::testing::TempDir() + "log_file_test." + std::to_string(getpid());
};

TEST_F(LogFileTest, HoldsWhatIsWrittenByteForByte) {
  std::ofstream(path_) << "of the run before";
  LogFile file(path_);
  for (const std::string text : {"a\n", "half", " a line\n", "bar\rbar\r"}) EXPECT_EQ(file.write(text), "");
  EXPECT_EQ(file.close(), "");
  EXPECT_EQ(content(), "a\nhalf a line\nbar\rbar\r");
  EXPECT_EQ(file.lost_bytes(), 0u);
}

TEST_F(LogFileTest, SaysOnceThatThereIsNoRoomAndGoesOnBehindAMarkOnceThereIs) {
  LogFile file(path_);
  {
    const FileLimit limit(4);
    EXPECT_THAT(file.write("123456"), HasSubstr(path_ + " can't be written: "));
    EXPECT_EQ(content(), "1234") << "as far as there was room";
    EXPECT_EQ(file.write("789"), "") << "said before";
    EXPECT_EQ(file.lost_bytes(), 5u);
  }
  EXPECT_EQ(file.write("again\n"), "");
  EXPECT_EQ(content(), "1234\n[lockstep run] 5 bytes are missing here\nagain\n");
  EXPECT_EQ(file.lost_bytes(), 5u) << "they stay lost";
  const FileLimit limit(4);
  EXPECT_THAT(file.write("x"), HasSubstr("can't be written")) << "the next gap is news";
}

TEST_F(LogFileTest, AFolderThatIsNotThereIsAnError) { EXPECT_THROW(LogFile("/no/such/folder/x"), SystemError); }

}  // namespace
}  // namespace lockstep::launcher::log_file_test
