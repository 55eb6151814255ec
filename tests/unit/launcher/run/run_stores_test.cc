// SPDX-License-Identifier: Apache-2.0
#include "launcher/run/run_stores.h"

#include <gtest/gtest.h>

#include <vector>

#include "runtime/store/client/tcp_store.h"
#include "tests/support/wait_until.h"

namespace lockstep::launcher::run_stores_test {
namespace {

TEST(RunStores, ForgetTheKeysOfAStartThatIsOver) {
  Contract contract;
  contract.store_secret = store::Secret::random();
  RunStores stores({}, {}, contract, [](const membership::MemberNews&) {});
  const Deadline deadline = Deadline::after(testing::kPatience);
  store::TcpStore client({.address = stores.address(), .secret = contract.store_secret}, deadline);
  client.set("rendezvous/run/0/member", "old");
  client.set("rendezvous/run/1/member", "new");
  stores.forget("rendezvous/run/0/");
  EXPECT_TRUE(
      testing::wait_until([&] { return client.list_keys() == std::vector<std::string>{"rendezvous/run/1/member"}; }));
}

}  // namespace
}  // namespace lockstep::launcher::run_stores_test
