// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/file_error.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "tests/support/error_of.h"

namespace lockstep::checkpoint::file_error_test {
namespace {

using lockstep::testing::expect_text;

TEST(FileError, HasOperationPathReasonAndRemedy) {
  const SystemError full = file_error("writing", "run7/model.safetensors", "write", ENOSPC);
  EXPECT_TRUE(
      std::string(full.what())
          .starts_with("writing 'run7/model.safetensors': write: No space left on device (errno 28); make room"))
      << full.what();
  EXPECT_EQ(full.error_number(), ENOSPC);
  EXPECT_TRUE(std::string(file_error("removing", "run7", "", EROFS).what())
                  .starts_with("removing 'run7': Read-only file system (errno 30); its file system"));
  expect_text(file_error("opening", "run7/lock", "", EACCES).what(),
              {"Permission denied", "give uid " + std::to_string(::geteuid()) + ","});
}

TEST(FileError, HasARemedyForEachReason) {
  for (const int reason : {EACCES,    EPERM,  EROFS,  ENOSPC, EDQUOT, ENOENT, ESTALE,  ENOTDIR, ELOOP,     ENAMETOOLONG,
                           ENOTEMPTY, EMFILE, ENFILE, EFBIG,  ENOMEM, EIO,    EUCLEAN, ENODEV,  ETIMEDOUT, 4711}) {
    const std::string text = file_error("listing", "run7", "", reason).what();
    const std::string before = "listing 'run7': " + errno_text(reason) + "; ";
    ASSERT_TRUE(text.starts_with(before)) << text;
    EXPECT_GT(text.size(), before.size() + 15) << text;
  }
}

}  // namespace
}  // namespace lockstep::checkpoint::file_error_test
