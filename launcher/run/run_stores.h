// What the ranks of a run meet at: the run's own store, and the one that torch programs ask for.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/command_line.h"
#include "launcher/run/contract.h"
#include "runtime/store/tcp_store_server.h"

namespace lockstep::launcher {

// Each store has a thread, so nobody but Job forks once this is there.
class RunStores {
 public:
  // Serves the run's own store with the contract's secret, on loopback, and with --torch-store torch's at MASTER_ADDR.
  // Fills in what the ranks must know of them. Throws InvalidArgument for a --master-addr that is none of this host's,
  // SystemError.
  // `on_news`: as TcpStoreServerOptions has it, of the run's own store.
  RunStores(const RunOptions& options, Contract& contract, std::function<void(const store::MemberNews&)> on_news);

  // The ranks that have registered with the run's own store; nothing if it doesn't answer soon.
  std::optional<std::vector<store::MemberView>> members() const;
  // Where everybody is served; empty without --torch-store.
  std::string open_address() const { return torch_ ? torch_->address().to_string() : std::string(); }

 private:
  store::TcpStoreServer own_;
  std::unique_ptr<store::TcpStoreServer> torch_;  // without a secret: torch has none
};

}  // namespace lockstep::launcher
