#include "runtime/base/error.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace lockstep {
namespace {

TEST(Error, ErrnoTextHasWordsAndNumber) { EXPECT_EQ(errno_text(ECONNREFUSED), "Connection refused (errno 111)"); }

TEST(Error, SystemErrorNamesOperationAndReason) {
  const SystemError error("bind 127.0.0.1:80", EACCES);
  EXPECT_STREQ(error.what(), "bind 127.0.0.1:80: Permission denied (errno 13)");
  EXPECT_EQ(error.error_number(), EACCES);
}

}  // namespace
}  // namespace lockstep
