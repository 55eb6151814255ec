// SPDX-License-Identifier: Apache-2.0
// An operator new in the place of the C++ library's.
#include <cstdlib>
#include <new>

void* operator new(std::size_t size) {
  if (void* const memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
