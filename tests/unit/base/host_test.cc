// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/host.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(Host, HasANameAndABootIdThatStays) {
  EXPECT_FALSE(host_name().empty());
  EXPECT_EQ(boot_id().size(), 36u) << boot_id();
  EXPECT_EQ(boot_id(), boot_id());
}

TEST(Host, IsInANetwork) { EXPECT_TRUE(network_namespace().starts_with("net:[")) << network_namespace(); }

}  // namespace
}  // namespace lockstep
