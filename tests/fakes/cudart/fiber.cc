// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/cudart/fiber.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <cstdint>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// swapcontext() asks the kernel for the signal mask each time, which costs more than all that a thread of a block does
// between two barriers. Here: the registers that a function keeps, and the stack.
#if defined(__x86_64__)
extern "C" void lockstep_fake_switch_stacks(void** from, void* to);
asm(R"(
.text
.globl lockstep_fake_switch_stacks
.hidden lockstep_fake_switch_stacks
.type lockstep_fake_switch_stacks, @function
lockstep_fake_switch_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size lockstep_fake_switch_stacks, .-lockstep_fake_switch_stacks
.section .note.GNU-stack,"",@progbits
.text
)");
#endif

namespace lockstep::fake_cuda {
namespace {

// Frames are larger under sanitizers.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kStackBytes = std::size_t{1} << 18;
#else
constexpr std::size_t kStackBytes = std::size_t{1} << 16;
#endif

thread_local Fiber* entering = nullptr;

}  // namespace

struct Fiber::Context {
  void* stack = nullptr;  // null: the thread's own
  const void* bottom = nullptr;
  std::size_t bytes = 0;
#if defined(__x86_64__)
  void* top = nullptr;
#else
  ucontext_t registers{};
#endif
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
#endif
};

Fiber::Fiber() : context_(new Context) {}

Fiber::Fiber(void (*main)(void*), void* argument) : context_(new Context), main_(main), argument_(argument) {
  void* const stack =
      ::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stack == MAP_FAILED) throw std::bad_alloc();
  context_->stack = stack;
  context_->bottom = stack;
  context_->bytes = kStackBytes;
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(stack, kStackBytes);
#endif
  const auto start = +[] { enter(entering); };
#if defined(__x86_64__)
  // As after a call: the return address of `start` above a multiple of 16.
  auto* top = reinterpret_cast<std::uintptr_t*>(static_cast<std::byte*>(stack) + kStackBytes - 64);
  *--top = 0;
  *--top = reinterpret_cast<std::uintptr_t>(start);
  for (int i = 0; i < 6; ++i) *--top = 0;
  context_->top = top;
#else
  ::getcontext(&context_->registers);
  context_->registers.uc_stack = {.ss_sp = stack, .ss_flags = 0, .ss_size = kStackBytes};
  context_->registers.uc_link = nullptr;
  ::makecontext(&context_->registers, start, 0);
#endif
}

Fiber::~Fiber() {
  if (context_->stack != nullptr) {
    ::munmap(context_->stack, kStackBytes);
  }
  delete context_;
}

void Fiber::enter(Fiber* self) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &self->came_from_->context_->bottom, &self->came_from_->context_->bytes);
#endif
  self->main_(self->argument_);
}

void Fiber::switch_to(Fiber& other) {
  entering = &other;
  other.came_from_ = this;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&context_->fake_stack, other.context_->bottom, other.context_->bytes);
#endif
#if defined(__x86_64__)
  lockstep_fake_switch_stacks(&context_->top, other.context_->top);
#else
  ::swapcontext(&context_->registers, &other.context_->registers);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(context_->fake_stack, nullptr, nullptr);
#endif
}

}  // namespace lockstep::fake_cuda
