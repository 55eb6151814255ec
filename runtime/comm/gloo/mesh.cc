// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/gloo/mesh.h"

#include <fmt/format.h>
#include <gloo/transport/address.h>
#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/comm/wire/wire.h"
#include "runtime/rendezvous/consensus.h"

namespace lockstep::gloo_backend {
namespace {

using std::chrono::milliseconds;

constexpr int kTimesThatGlooWaits = 5;

// Where `of` awaits `rank`. `addresses`: at which it awaits the others, one after the other in rank order, its own left
// out.
std::vector<char> address_for(int rank, int of, int size, const std::string& addresses) {
  const std::size_t each = addresses.size() / static_cast<std::size_t>(size - 1);
  if (each == 0 || addresses.size() % static_cast<std::size_t>(size - 1) != 0) {
    throw Mismatch(
        fmt::format("Gloo: rank {} told {} bytes of addresses for {} ranks; run one version of lockstep and "
                    "of Gloo on every host",
                    of, addresses.size(), size - 1));
  }
  const auto begin = addresses.begin() + static_cast<std::ptrdiff_t>(each) * (rank < of ? rank : rank - 1);
  return {begin, begin + static_cast<std::ptrdiff_t>(each)};
}

}  // namespace

void Mesh::connect(std::shared_ptr<::gloo::transport::Device> device, store::Store& store,
                   const rendezvous::Roster& roster, const Deadline& deadline) {
  const auto transport = device->createContext(rank, size);
  const auto limit = std::chrono::ceil<milliseconds>(deadline.remaining()) / kTimesThatGlooWaits;
  transport->setTimeout(std::max(limit, milliseconds(1)));
  std::string own;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    auto& pair = transport->createPair(peer);
    pair->setLocalRank(0);  // for its own log, which does not start it
    const auto address = pair->address().bytes();
    own.append(address.begin(), address.end());
  }
  {
    MutexLock lock(interrupt_mutex_);
    connecting_ = transport;
  }
  rendezvous::Consensus consensus(
      store, roster, rank, {.name = "gloo", .what = "Gloo: the ranks connect", .remedy = "see whether they still run"});
  const auto addresses = consensus.gather(own, deadline);
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    stop_if_interrupted();
    transport->getPair(peer)->connect(address_for(rank, peer, size, addresses[static_cast<std::size_t>(peer)]));
  }
  stop_if_interrupted();
  device_ = std::move(device);
  transportContext_ = transport;
}

void Mesh::stop_if_interrupted() {
  MutexLock lock(interrupt_mutex_);
  if (interrupted_) throw wire::Broken("interrupted");
}

void Mesh::interrupt() {
  MutexLock lock(interrupt_mutex_);
  interrupted_ = true;
  if (connecting_ == nullptr) return;
  // A pair that is closed waits for nobody.
  for (int peer = 0; peer < size; ++peer) {
    if (peer != rank) connecting_->getPair(peer)->close();
  }
}

}  // namespace lockstep::gloo_backend
