// SPDX-License-Identifier: Apache-2.0
#include "launcher/run/run_stores.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "runtime/net/tcp_socket.h"

namespace lockstep::launcher {
namespace {

// No program may listen on the port when the ranks look for it, so it is not held; another program could take it before
// they do. The kernel assigns such ports in a random order, which makes that unlikely.
int free_port() { return net::local_address(net::tcp_listen({"127.0.0.1", 0}).get()).port; }

std::unique_ptr<store::TcpStoreServer> serve_torch(const RunOptions& options, const std::string& address) {
  try {
    return std::make_unique<store::TcpStoreServer>(
        store::TcpStoreServerOptions{.listen = {address, static_cast<std::uint16_t>(options.master_port)},
                                     .extension = std::make_shared<membership::MembershipServer>()});
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("--torch-store: {}", error.what()));
  }
}

}  // namespace

RunStores::RunStores(const RunOptions& options, const Place& place, Contract& contract,
                     membership::MembershipServer::OnNews on_news)
    : members_(std::make_shared<membership::MembershipServer>(membership::MembershipOptions{}, std::move(on_news))),
      own_({.listen = place.listen, .secret = contract.store_secret, .run_id = place.run_id, .extension = members_}) {
  contract.store_address = own_.address().to_string();
  if (options.torch_store) {
    torch_ = serve_torch(options, contract.master_addr);
    contract.master_port = torch_->address().port;
  } else {
    contract.master_port = options.master_port != 0 ? options.master_port : free_port();
  }
}

std::vector<membership::MemberView> RunStores::members(const std::string& scope) const {
  auto members = members_->members();
  std::erase_if(members, [&scope](const auto& member) { return !member.scope.starts_with(scope); });
  return members;
}

std::string torch_store_warning(const std::string& address) {
  return fmt::format(
      "--torch-store: torch's protocol at {}, without a secret: whoever reaches it may read, change and stop what runs "
      "through it",
      address);
}

}  // namespace lockstep::launcher
