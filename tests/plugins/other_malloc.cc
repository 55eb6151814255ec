// SPDX-License-Identifier: Apache-2.0
// A malloc() in the place of the C library's.
#include <cstddef>

extern "C" void* __libc_malloc(std::size_t size);
extern "C" void* malloc(std::size_t size) { return __libc_malloc(size); }
