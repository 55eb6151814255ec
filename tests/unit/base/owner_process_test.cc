// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/owner_process.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>

#include "lockstep/base/error.h"
#include "tests/support/child.h"

namespace lockstep::owner_process_test {
namespace {

// Whether `check` holds in a forked child.
bool in_child(const std::function<bool()>& check) {
  testing::Child child([&](const testing::Line&) { return check() ? 0 : 1; });
  return child.wait() == 0;
}

struct Counted {
  explicit Counted(int& the_ends) : ends(the_ends) {}
  ~Counted() { ++ends; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  int& ends;
};

TEST(OwnerProcess, IsHereAndInNoForkedChild) {
  const OwnerProcess owner;
  EXPECT_TRUE(owner.is_here());
  EXPECT_TRUE(in_child([&] { return !owner.is_here() && OwnerProcess().is_here(); }));
  EXPECT_TRUE(in_child([&] { return in_child([&] { return !owner.is_here(); }); })) << "nor in its child";
  EXPECT_TRUE(owner.is_here());
}

TEST(OwnerProcess, RefusesWithBothProcesses) {
  const OwnerProcess owner;
  owner.require("barrier");
  const std::string parent = std::to_string(::getpid());
  EXPECT_TRUE(in_child([&] {
    try {
      owner.require("barrier");
    } catch (const InvalidArgument& error) {
      const std::string text = error.what();
      return text.starts_with("barrier: this object belongs to process " + parent + ", and process " +
                              std::to_string(::getpid()) + " was forked from it");
    }
    return false;
  }));
}

TEST(OwnerProcess, ObjectsEndWhereTheyWereMade) {
  int ends = 0;
  auto unique = make_owned_here<Counted>(ends);
  auto shared = released_by_owner(std::make_shared<Counted>(ends));
  EXPECT_TRUE(in_child([&] {
    unique.reset();
    shared.reset();
    return ends == 0;
  }));
  unique.reset();
  EXPECT_EQ(ends, 1);
  auto copy = shared;
  shared.reset();
  EXPECT_EQ(ends, 1);
  copy.reset();
  EXPECT_EQ(ends, 2);
}

}  // namespace
}  // namespace lockstep::owner_process_test
