// SPDX-License-Identifier: Apache-2.0
// What Gloo's own header of this name declares: its tcp/pair.h, tcp/context.h and tcp/unbound_buffer.h include it, and
// packages of Gloo leave it out. Found only where Gloo's is not installed (-idirafter in runtime/CMakeLists.txt).
//
// References to an unbound buffer that may end while a pair still knows it. Gloo's library has the code that uses them;
// here they are members of its classes, and only their layout counts.
#pragma once

#include <memory>

namespace gloo {

template <typename T>
class NonOwningPtr final {
  std::shared_ptr<T> ptr_;
};

template <typename T>
class ShareableNonOwningPtr final {
  std::shared_ptr<T> ptr_;
};

template <typename T>
class WeakNonOwningPtr final {
 public:
  WeakNonOwningPtr() = default;
  explicit WeakNonOwningPtr(const ShareableNonOwningPtr<T>& owner);

 private:
  std::weak_ptr<T> ptr_;
};

}  // namespace gloo
