// SPDX-License-Identifier: Apache-2.0
// Keyed message authentication: HMAC-SHA256 (RFC 2104, FIPS 180-4), computed by OpenSSL's libcrypto.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

namespace lockstep {

using Sha256Mac = std::array<std::byte, 32>;

// The HMAC of `parts` one after the other. It does not depend on where a part ends: a caller whose parts have variable
// lengths writes the lengths down too. Throws Error if libcrypto refuses, as one may that is restricted by policy. Any
// thread.
Sha256Mac hmac_sha256(std::span<const std::byte> key, std::span<const std::string_view> parts);

// Whether both are the same, in a time that depends on their sizes alone.
bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b);

// Overwrites `bytes` with zeros, also where the compiler can see that nobody reads them again.
void wipe(std::span<std::byte> bytes);

}  // namespace lockstep
