// SPDX-License-Identifier: Apache-2.0
// Bytes that nobody can guess: secrets and nonces. For numbers that can be drawn again, see random.h.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace lockstep {

// Fills `bytes` from the kernel's generator (getrandom(2)). Throws SystemError. Any thread.
void fill_random(std::span<std::byte> bytes);
// Two hexadecimal digits for each byte. Any thread.
std::string hex_digits(std::span<const std::byte> bytes);
// That many random bytes as twice as many hexadecimal digits. Throws SystemError. Any thread.
std::string random_hex(std::size_t bytes);

}  // namespace lockstep
