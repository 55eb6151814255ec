#include "launcher/cause_inbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "runtime/base/error.h"

namespace lockstep::launcher {

CauseInbox::CauseInbox() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!event_) throw SystemError("eventfd", errno);
}

void CauseInbox::put(const Cause& cause) {
  MutexLock lock(mutex_);
  causes_.push_back(cause);
  const std::uint64_t one = 1;
  if (write(event_.get(), &one, sizeof one) != sizeof one) throw SystemError("write an eventfd", errno);
}

std::vector<Cause> CauseInbox::take() {
  MutexLock lock(mutex_);
  std::uint64_t count = 0;
  // Nothing there (EAGAIN) is no error; nothing else can go wrong with an eventfd of our own.
  if (read(event_.get(), &count, sizeof count) < 0 && errno != EAGAIN) throw SystemError("read an eventfd", errno);
  return std::exchange(causes_, {});
}

}  // namespace lockstep::launcher
