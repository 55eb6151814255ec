// SPDX-License-Identifier: Apache-2.0
// The stores at which the ranks of a job meet: the job's own, and the one that torch programs use.
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

// Each store has a thread, so forks of this process must allow for other threads (spawn(), Guardian::replace()).
class RunStores {
 public:
  // Address of the job's own store, and the run whose clients it accepts.
  struct Place {
    net::HostPort listen = {"127.0.0.1", 0};
    std::string run_id = {};  // empty: accepts clients of any run
  };
  // Serves the job's own store with the contract's secret, and with --torch-store torch's at MASTER_ADDR. Fills in the
  // fields of the contract from which the ranks find them. Throws InvalidArgument for another host's address,
  // SystemError. `on_news` gets news of the members of the job's own store.
  RunStores(const RunOptions& options, const Place& place, Contract& contract,
            membership::MembershipServer::OnNews on_news);

  // Returns the ranks that have registered with the job's own store, in scopes whose names begin with `scope`.
  std::vector<membership::MemberView> members(const std::string& scope) const;
  // Erases the keys of that scope, whose ranks have all ended and are not started again.
  void forget(const std::string& scope) { own_.erase_all(store::wire_key("the job's", scope)); }
  // Address of the job's own store.
  const net::HostPort& address() const { return own_.address(); }
  // Waits until the job's own store has no client any more, at most until the deadline.
  void wait_until_idle(const Deadline& deadline) { own_.wait_until_idle(deadline); }
  // Returns "ADDRESS:PORT" of torch's store, for a warning that it is open; empty without --torch-store.
  std::string open_address() const { return torch_ ? torch_->address().to_string() : std::string(); }

 private:
  std::shared_ptr<membership::MembershipServer> members_;
  store::TcpStoreServer own_;
  std::unique_ptr<store::TcpStoreServer> torch_;  // without a secret, since torch's protocol has none
};

// Returns a warning for the user about a torch store at `address`.
std::string torch_store_warning(const std::string& address);

}  // namespace lockstep::launcher
