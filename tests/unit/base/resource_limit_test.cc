// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/resource_limit.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <cerrno>
#include <string>

#include "lockstep/base/error.h"
#include "runtime/base/quiet_thread.h"
#include "tests/support/limited_to.h"

namespace lockstep::resource_limit_test {
namespace {

using testing::LimitedTo;

TEST(ResourceLimit, IsNamedBehindTheErrorThatItCauses) {
  const LimitedTo files(RLIMIT_NOFILE, 64);
  EXPECT_EQ(errno_text(EMFILE), "Too many open files (errno 24: 'ulimit -n' allows 64)");
  const LimitedTo size(RLIMIT_FSIZE, 1 << 20);
  EXPECT_EQ(errno_text(EFBIG), "File too large (errno 27: 'ulimit -f' allows 1024 KiB)");
  EXPECT_EQ(resource_limit(RLIMIT_FSIZE), 1u << 20);
}

TEST(ResourceLimit, ThatIsNotSetIsNotNamed) {
  const LimitedTo size(RLIMIT_FSIZE, RLIM_INFINITY);
  EXPECT_EQ(resource_limit(RLIMIT_FSIZE), std::nullopt);
  EXPECT_EQ(errno_text(EFBIG), "File too large (errno 27)");
}

// A stack that no address space holds: there is no thread to have, whatever the machine's limits are.
class ThreadsOfHugeStacks {
 public:
  ThreadsOfHugeStacks() {
    pthread_attr_t huge;
    EXPECT_EQ(pthread_getattr_default_np(&before_), 0);
    pthread_attr_init(&huge);
    EXPECT_EQ(pthread_attr_setstacksize(&huge, std::size_t{1} << 46), 0);
    EXPECT_EQ(pthread_setattr_default_np(&huge), 0);
    pthread_attr_destroy(&huge);
  }
  ~ThreadsOfHugeStacks() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }
  ThreadsOfHugeStacks(const ThreadsOfHugeStacks&) = delete;
  ThreadsOfHugeStacks& operator=(const ThreadsOfHugeStacks&) = delete;

 private:
  pthread_attr_t before_;
};

TEST(ResourceLimit, AThreadThatCannotBeHadIsAnErrorOfOurs) {
  const ThreadsOfHugeStacks none;
  try {
    start_quiet_thread([] {}).join();
    FAIL() << "a thread with a stack of 64 TB";
  } catch (const SystemError& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.error_number(), EAGAIN);
    for (const char* part : {"starting a thread: ", "'ulimit -u'", "'ulimit -v'", "pids.max", "(errno 11)"}) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  }
  try {
    throw_no_thread(EPERM);
  } catch (const SystemError& error) {
    EXPECT_NE(std::string(error.what()).find("a seccomp filter refuses clone3"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace lockstep::resource_limit_test
