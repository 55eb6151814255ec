// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/signal_stack.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// Bytes for the handlers; the processor's registers need more on top.
constexpr std::size_t kForHandlers = 64 << 10;

std::size_t register_frame() {
  const long bytes = sysconf(_SC_MINSIGSTKSZ);
  return bytes > 0 ? static_cast<std::size_t>(bytes) : std::size_t{16} << 10;
}

class SignalStack {
 public:
  SignalStack() : size_(kForHandlers + register_frame()) {
    memory_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (memory_ == MAP_FAILED)
      throw SystemError(
          "can't map memory for the stack of signal handlers (raise the limit on address space, ulimit -v)", errno);
    stack_t stack{};
    stack.ss_sp = memory_;
    stack.ss_size = size_;
    if (sigaltstack(&stack, nullptr) == 0) return;
    const int error = errno;
    munmap(memory_, size_);
    throw SystemError("sigaltstack", error);
  }
  ~SignalStack() {
    stack_t now{}, none{};
    none.ss_flags = SS_DISABLE;
    // Another that the program has set since is the program's.
    if (sigaltstack(nullptr, &now) == 0 && now.ss_sp == memory_ && sigaltstack(&none, nullptr) != 0) return;
    munmap(memory_, size_);
  }
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  std::size_t size_;
  void* memory_ = nullptr;
};

}  // namespace

void give_signal_stack() {
  stack_t now{};
  if (sigaltstack(nullptr, &now) != 0) throw SystemError("sigaltstack", errno);
  if ((now.ss_flags & SS_DISABLE) == 0) return;
  thread_local const SignalStack stack;
}

}  // namespace lockstep
