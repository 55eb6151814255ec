// SPDX-License-Identifier: Apache-2.0
// Under torchrun, whose agent hosts a store of PyTorch's at MASTER_ADDR and MASTER_PORT. Rank 0 hosts our own store
// beside it, which has what PyTorch's lacks, and tells of it there.
#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/net/backoff.h"
#include "runtime/net/interfaces.h"
#include "runtime/net/tcp_socket.h"
#include "runtime/rendezvous/meeting/rendezvous_methods.h"
#include "runtime/store/client/torch_store_client.h"

namespace lockstep::rendezvous {
namespace {

// A server of the 1.13 era closes a connection on which a key is asked for that was erased just then.
constexpr int kMostErrors = 5;

// The key of the announcement, which is erased when rank 0 leaves.
class AgentKey {
 public:
  AgentKey(std::unique_ptr<store::TorchStoreClient> agent, std::string key, std::string_view value)
      : agent_(std::move(agent)), key_(std::move(key)) {
    agent_->set(key_, value);
  }
  ~AgentKey() {
    try {
      agent_->erase(key_);
    } catch (const Error& error) {
      log_debug("rendezvous: torchrun's agent has gone before '{}' was erased: {}", key_, error.what());
    }
  }
  AgentKey(const AgentKey&) = delete;
  AgentKey& operator=(const AgentKey&) = delete;

 private:
  std::unique_ptr<store::TorchStoreClient> agent_;
  std::string key_;
};

// The others reach the agent's host, so they reach the address from which this one reaches it; but not loopback.
net::HostPort address_beside_agent(const MeetingPlan& plan, const Identity& identity, const Deadline& deadline) {
  const UniqueFd agent = net::tcp_connect(plan.address, deadline.sooner(kPresent));
  const net::HostPort self = net::local_address(agent.get());
  const bool is_here = net::is_loopback(self) || self.host == net::peer_address(agent.get()).host;
  const bool is_hidden = is_here && !net::faces_others(net::interfaces_of_this_host(), self.host);
  if (!is_hidden || !is_several_hosts(identity)) return {self.host, 0};
  const net::HostPort outward = outward_address(plan);
  log_warn("rendezvous: {}", describe_hidden_name(plan, self.host, fmt::format("at {}", outward.host)));
  return outward;
}

std::shared_ptr<OwnedStore> host(std::unique_ptr<store::TorchStoreClient> agent, const std::string& key,
                                 const MeetingPlan& plan, const Identity& identity, const Deadline& deadline) {
  auto [owned, advertisement] =
      host_advertised_store(address_beside_agent(plan, identity, deadline), plan, identity, deadline);
  if (advertisement.secret) {
    log_info(
        "rendezvous: the secret of this job's store at {} lies in torchrun's store at {}, where anyone who reaches it "
        "can read it. Set LOCKSTEP_STORE_SECRET (64 hex digits) or LOCKSTEP_STORE_SECRET_FILE to the same value on "
        "every rank",
        owned->address, plan.address.to_string());
  }
  owned->announcement = std::make_shared<AgentKey>(std::move(agent), key, encode(advertisement));
  return owned;
}

std::shared_ptr<OwnedStore> connect_via_agent(store::TorchStoreClient& agent, const std::string& key,
                                              const MeetingPlan& plan, const Identity& identity,
                                              const Deadline& deadline) {
  std::string failure;
  int errors = 0;
  for (net::Backoff backoff;;) {
    std::string text;
    try {
      text = agent.get(key, deadline);
      errors = 0;
    } catch (const Timeout&) {
      throw with_history(
          Timeout(fmt::format(
              "rendezvous: rank 0 has not come: torchrun's store at {} does not hold the address of rank 0's store "
              "yet, {}; look at rank 0's output, or set LOCKSTEP_TIMEOUT (seconds) if rank 0 starts later",
              plan.address.to_string(), deadline.progress())),
          failure);
    } catch (const StoreError&) {
      if (++errors == kMostErrors) throw;
    }
    // A server of today answers with nothing where one of 1.13 closes.
    if (!text.empty()) {
      const StoreAdvertisement advertisement =
          decode_advertisement(text, fmt::format("key '{}' of torchrun's store", key));
      if (auto owned = connect_via_advertisement(advertisement, plan, identity, deadline.sooner(kProbe), failure))
        return owned;
    }
    if (!backoff.pause(deadline)) {
      throw Timeout(
          fmt::format("rendezvous: {} could not connect to rank 0's store at the address from torchrun's store at {}, "
                      "{}: {}; look at rank 0's output",
                      whoami(identity), plan.address.to_string(), deadline.progress(), failure));
    }
  }
}

}  // namespace

std::shared_ptr<OwnedStore> meet_through_agent(const MeetingPlan& plan, const Identity& identity,
                                               const Deadline& deadline) {
  const std::string key = fmt::format("lockstep/rendezvous/{}/{}", identity.run_id, identity.restart_count);
  std::unique_ptr<store::TorchStoreClient> agent;
  try {
    agent = std::make_unique<store::TorchStoreClient>(plan.address, deadline.sooner(kPresent));
  } catch (const Timeout& error) {
    throw Timeout(
        fmt::format("rendezvous: {} did not reach the store that torchrun's agent hosts "
                    "(TORCHELASTIC_USE_AGENT_STORE=True, {}): {}; see that the agent still runs",
                    whoami(identity), plan.told_by, error.what()));
  }
  if (identity.rank == 0) return host(std::move(agent), key, plan, identity, deadline);
  return connect_via_agent(*agent, key, plan, identity, deadline);
}

}  // namespace lockstep::rendezvous
