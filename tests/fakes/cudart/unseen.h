// SPDX-License-Identifier: Apache-2.0
// What a data race is made of on purpose, where a test takes a wait away and the fake reports it: ThreadSanitizer is
// not to report the same once more, as a fault of the program's. Without it this is nothing.
#pragma once

namespace lockstep::fake_cuda {

#if defined(__SANITIZE_THREAD__)
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}

// While one lives, what this thread reads and writes is not looked at.
class Unseen {
 public:
  Unseen() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Unseen() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
  Unseen(const Unseen&) = delete;
  Unseen& operator=(const Unseen&) = delete;
};
#else
struct Unseen {
  Unseen() {}
};
#endif

}  // namespace lockstep::fake_cuda
