// SPDX-License-Identifier: Apache-2.0
// What the ranks of a run meet at: the run's own store, and the one that torch programs ask for.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "launcher/command_line.h"
#include "launcher/run/contract.h"
#include "runtime/membership/membership_server.h"
#include "runtime/store/server/tcp_store_server.h"

namespace lockstep::launcher {

// Each store has a thread, so nobody but Job forks once this is there.
class RunStores {
 public:
  // Serves the run's own store with the contract's secret, on loopback, and with --torch-store torch's at MASTER_ADDR.
  // Fills in what the ranks must know of them. Throws InvalidArgument for a --master-addr that is none of this host's,
  // SystemError.
  // `on_news`: of the members of the run's own store.
  RunStores(const RunOptions& options, Contract& contract, membership::MembershipServer::OnNews on_news);

  // The ranks that have registered with the run's own store.
  std::vector<membership::MemberView> members() const { return members_->members(); }
  // Where everybody is served; empty without --torch-store.
  std::string open_address() const { return torch_ ? torch_->address().to_string() : std::string(); }

 private:
  std::shared_ptr<membership::MembershipServer> members_;
  store::TcpStoreServer own_;
  std::unique_ptr<store::TcpStoreServer> torch_;  // without a secret: torch has none
};

}  // namespace lockstep::launcher
