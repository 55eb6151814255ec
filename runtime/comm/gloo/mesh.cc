// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/gloo/mesh.h"

#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/pair.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <utility>

#include "runtime/comm/wire/wire.h"

namespace lockstep::gloo_backend {
namespace {

namespace tcp = ::gloo::transport::tcp;

// A pair that is given its connection, and makes none; and that tells when it has read and written.
class ConnectedPair final : public tcp::Pair {
 public:
  ConnectedPair(tcp::Context* context, tcp::Device* device, int peer, std::function<void()> on_io)
      : Pair(context, device, peer, kForever), on_io_(std::move(on_io)) {}

  // As Pair::handleConnected(). A pair of Gloo's that has listened since it was made stops doing so.
  void take(UniqueFd socket) {
    const std::lock_guard<std::mutex> lock(m_);
    if (state_ == CONNECTED || state_ == CLOSED) {
      throw wire::Broken("a process of this host connected to Gloo's own port");
    }
    if (fd_ >= 0) {
      device_->unregisterDescriptor(fd_, this);
      ::close(fd_);
    }
    fd_ = socket.release();
    self_ = tcp::Address::fromSockName(fd_);
    peer_ = tcp::Address::fromPeerName(fd_);
    device_->registerDescriptor(fd_, EPOLLIN, this);
    changeState(CONNECTED);
  }

  // Closes while on_io_ is there: Gloo's thread may be in handleReadWrite(), where it holds the lock.
  ~ConnectedPair() override {
    const std::lock_guard<std::mutex> lock(m_);
    if (state_ != CLOSED) Pair::changeState(CLOSED);
  }

 private:
  void handleReadWrite(int events) override {
    Pair::handleReadWrite(events);
    on_io_();
  }

  const std::function<void()> on_io_;
};

class ConnectedContext final : public tcp::Context {
 public:
  ConnectedContext(std::shared_ptr<tcp::Device> device, int own_rank, int ranks, std::function<void()> on_io)
      : Context(std::move(device), own_rank, ranks), on_io_(std::move(on_io)) {}

  void add(int peer, UniqueFd socket) {
    auto pair = std::make_unique<ConnectedPair>(this, device_.get(), peer, on_io_);
    pair->setLocalRank(0);  // for its own log, which does not start it
    pair->take(std::move(socket));
    pairs_[static_cast<std::size_t>(peer)] = std::move(pair);
  }

 private:
  const std::function<void()> on_io_;
};

std::shared_ptr<tcp::Device> make_device() {
  tcp::attr attributes;
  attributes.hostname = "127.0.0.1";
  return std::static_pointer_cast<tcp::Device>(tcp::CreateDevice(attributes));
}

}  // namespace

void Mesh::connect(store::Store& store, const rendezvous::Roster& roster, wire::ConnectOptions options,
                   const Deadline& deadline) {
  const auto device = make_device();
  const auto transport = std::make_shared<ConnectedContext>(device, rank, size, on_io_);
  transport->setTimeout(kForever);
  options.check = [this] { stop_if_interrupted(); };
  auto connections = wire::connect_all(store, roster, rank, options, deadline);
  for (int peer = 0; peer < size; ++peer) {
    if (peer != rank) transport->add(peer, std::move(connections[static_cast<std::size_t>(peer)]));
  }
  device_ = device;
  transportContext_ = transport;
}

std::unique_ptr<PolledBuffer> Mesh::make_polled_buffer(void* data, std::size_t bytes) {
  return std::make_unique<PolledBuffer>(std::static_pointer_cast<tcp::Context>(transportContext_), data, bytes);
}

void Mesh::stop_if_interrupted() {
  MutexLock lock(interrupt_mutex_);
  if (interrupted_) throw wire::Broken("interrupted");
}

void Mesh::interrupt() {
  MutexLock lock(interrupt_mutex_);
  interrupted_ = true;
}

}  // namespace lockstep::gloo_backend
