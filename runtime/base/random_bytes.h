// Bytes that nobody can guess: secrets and nonces. For numbers that can be drawn again, see random.h.
#pragma once

#include <cstddef>
#include <span>

namespace lockstep {

// Fills `bytes` from the kernel's generator (getrandom(2)). Throws SystemError. Any thread.
void fill_random(std::span<std::byte> bytes);

}  // namespace lockstep
