// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/hmac.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <string>

#include "lockstep/base/error.h"

namespace lockstep {

Sha256Mac hmac_sha256(std::span<const std::byte> key, std::span<const std::string_view> parts) {
  std::string message;
  for (const std::string_view part : parts) message += part;
  Sha256Mac mac;
  unsigned size = 0;
  const unsigned char* done = ::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()),
                                     reinterpret_cast<const unsigned char*>(message.data()), message.size(),
                                     reinterpret_cast<unsigned char*>(mac.data()), &size);
  if (done == nullptr || size != mac.size()) {
    throw Error(
        "HMAC-SHA256: libcrypto refused to compute the HMAC; see whether a policy of this machine (openssl.cnf) "
        "forbids SHA-256");
  }
  return mac;
}

bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

void wipe(std::span<std::byte> bytes) { ::OPENSSL_cleanse(bytes.data(), bytes.size()); }

}  // namespace lockstep
