// SPDX-License-Identifier: Apache-2.0
// A stack of its own that a thread of the host runs on for a while: the threads of a kernel's block, which wait for
// each other in the middle of a function.
//
// To ThreadSanitizer all fibers of a thread are that thread: what they do to each other blocks.h finds in every build,
// and a clock for each of hundreds of fibers makes a switch a hundred times as slow. Its traces of calls are then
// mixed.
//
// Threads: a fiber stays with the thread that made it.
#pragma once

#include <cstddef>

namespace lockstep::fake_cuda {

class Fiber {
 public:
  // The stack that the calling thread is on already.
  Fiber();
  // A stack on which `main(argument)` runs once it is switched to. `main` must not return: it switches away for good.
  Fiber(void (*main)(void*), void* argument);
  // Not while it runs. What is on its stack is dropped, and nothing destroyed.
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // From this one, which runs now, to the other; returns when somebody switches back.
  void switch_to(Fiber& other);

 private:
  struct Context;
  static void enter(Fiber* self);
  Context* context_;
  void (*main_)(void*) = nullptr;
  void* argument_ = nullptr;
  Fiber* came_from_ = nullptr;
};

}  // namespace lockstep::fake_cuda
