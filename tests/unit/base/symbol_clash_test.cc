// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/symbol_clash.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include "tests/support/error_of.h"

namespace lockstep::symbol_clash_test {
namespace {

TEST(SymbolClash, AFunctionThatTheProcessHasNotIsNone) {
  const SymbolClash clash = symbol_clash({.name = "nobody_has_this", .library = "libm.so.6"});
  EXPECT_EQ(clash.file, "");
  EXPECT_EQ(clash.flags(), 0);
  EXPECT_EQ(clash.problem("Nobody's", "libm.so.6"), "");
}

TEST(SymbolClash, AFunctionOfTheLibraryItselfIsNone) {
  EXPECT_EQ(symbol_clash({.name = "gnu_get_libc_version", .library = "libc.so.6"}).file, "");
}

TEST(SymbolClash, AFunctionOfAnotherFileIsOne) {
  SymbolClash clash = symbol_clash({.name = "gnu_get_libc_version", .library = "libnobody_has_this.so"});
  testing::expect_text(clash.file, {"libc.so.6"});
  EXPECT_EQ(clash.flags(), RTLD_DEEPBIND);
  clash.allocator = "/opt/libjemalloc.so";
  EXPECT_EQ(clash.problem("Libc", "libx.so"),
            "this process has Libc in " + clash.file +
                " already, and libx.so can't be kept apart from it with the malloc of /opt/libjemalloc.so");
}

}  // namespace
}  // namespace lockstep::symbol_clash_test
