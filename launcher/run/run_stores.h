// SPDX-License-Identifier: Apache-2.0
// The stores at which the ranks of a job meet: the job's own, and the one that torch programs ask for.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "launcher/flags/run_options.h"
#include "launcher/placement/contract.h"
#include "runtime/membership/membership_server.h"
#include "runtime/store/client/wire_keys.h"
#include "runtime/store/server/tcp_store_server.h"

namespace lockstep::launcher {

// Each store has a thread, so nobody but Job forks once this is there.
class RunStores {
 public:
  // Where the job's own store listens, and the run whose clients it takes.
  struct Place {
    net::HostPort listen = {"127.0.0.1", 0};
    std::string run_id = {};  // empty: any
  };
  // Serves the job's own store with the contract's secret, and with --torch-store torch's at MASTER_ADDR. Fills in what
  // the ranks must know of them. Throws InvalidArgument for another host's address, SystemError.
  // `on_news`: of the members of the job's own store.
  RunStores(const RunOptions& options, const Place& place, Contract& contract,
            membership::MembershipServer::OnNews on_news);

  // The ranks that have registered with the job's own store, in scopes whose names begin with `scope`.
  std::vector<membership::MemberView> members(const std::string& scope) const;
  // No rank of that scope runs any more, nor will one: its keys go.
  void forget(const std::string& scope) { own_.erase_all(store::wire_key("the job's", scope)); }
  // Where the job's own store listens.
  const net::HostPort& address() const { return own_.address(); }
  // Waits until the job's own store has no client any more, at most until the deadline.
  void wait_until_idle(const Deadline& deadline) { own_.wait_until_idle(deadline); }
  // "ADDRESS:PORT" of torch's store, for a warning that it is open; empty without --torch-store.
  std::string open_address() const { return torch_ ? torch_->address().to_string() : std::string(); }

 private:
  std::shared_ptr<membership::MembershipServer> members_;
  store::TcpStoreServer own_;
  std::unique_ptr<store::TcpStoreServer> torch_;  // without a secret: torch has none
};

// A warning for the user: of a torch store at `address`.
std::string torch_store_warning(const std::string& address);

}  // namespace lockstep::launcher
