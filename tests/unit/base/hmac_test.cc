// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/hmac.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lockstep::hmac_test {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    text += "0123456789abcdef"[std::to_integer<unsigned>(byte) >> 4];
    text += "0123456789abcdef"[std::to_integer<unsigned>(byte) & 15];
  }
  return text;
}

std::string mac_of(std::string_view key, const std::vector<std::string_view>& parts) {
  return hex(hmac_sha256(bytes_of(key), parts));
}

// RFC 4231, test cases 1, 2, 6 and 7.
TEST(Hmac, KnownAnswers) {
  EXPECT_EQ(mac_of(std::string(20, '\x0b'), {"Hi There"}),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(mac_of("Jefe", {"what do ya want for nothing?"}),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(mac_of(std::string(131, '\xaa'), {"Test Using Larger Than Block-Size Key - Hash Key First"}),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  EXPECT_EQ(
      mac_of(std::string(131, '\xaa'),
             {"This is a test using a larger than block-size key and a larger than block-size data. The key needs "
              "to be hashed before being used by the HMAC algorithm."}),
      "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST(Hmac, PartsAreOneMessage) {
  EXPECT_EQ(mac_of("Jefe", {"what do ", "", "ya want ", "for nothing?"}),
            mac_of("Jefe", {"what do ya want for nothing?"}));
  EXPECT_NE(mac_of("Jefe", {"a"}), mac_of("Jefe", {"b"}));
  EXPECT_NE(mac_of("Jefe", {"a"}), mac_of("jefe", {"a"}));
}

TEST(Hmac, ComparesWholeContents) {
  EXPECT_TRUE(equal_in_constant_time(bytes_of("abcd"), bytes_of("abcd")));
  EXPECT_TRUE(equal_in_constant_time({}, {}));
  EXPECT_FALSE(equal_in_constant_time(bytes_of("abcd"), bytes_of("abce")));
  EXPECT_FALSE(equal_in_constant_time(bytes_of("abcd"), bytes_of("xbcd")));
  EXPECT_FALSE(equal_in_constant_time(bytes_of("abcd"), bytes_of("abc")));
}

TEST(Hmac, WipesAll) {
  std::string text = "secret";
  wipe(std::as_writable_bytes(std::span(text)));
  EXPECT_EQ(text, std::string(6, '\0'));
}

}  // namespace
}  // namespace lockstep::hmac_test
