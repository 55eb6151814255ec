// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/error.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace lockstep::error_test {
namespace {

TEST(Error, ErrnoTextHasWordsAndNumber) { EXPECT_EQ(errno_text(ECONNREFUSED), "Connection refused (errno 111)"); }

TEST(Error, EveryMessageIsTextThatATerminalOnlyShows) {
  EXPECT_STREQ(InvalidArgument("key '\x1b[2J\xff' of\nrun-\u00e9").what(), "key '?[2J?' of\nrun-\u00e9");
}

TEST(Error, SystemErrorNamesOperationAndReason) {
  const SystemError error("bind 127.0.0.1:80", EACCES);
  EXPECT_STREQ(error.what(), "bind 127.0.0.1:80: Permission denied (errno 13)");
  EXPECT_EQ(error.error_number(), EACCES);
}

}  // namespace
}  // namespace lockstep::error_test
