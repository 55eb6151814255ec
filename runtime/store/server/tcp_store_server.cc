// SPDX-License-Identifier: Apache-2.0
#include "runtime/store/server/tcp_store_server.h"

#include <thread>
#include <utility>

#include "lockstep/base/mutex.h"
#include "runtime/base/event_fd.h"
#include "runtime/base/quiet_thread.h"
#include "runtime/store/server/server_loop.h"

namespace lockstep::store {

class TcpStoreServer::Impl {
 public:
  explicit Impl(const TcpStoreServerOptions& options)
      : loop_(options, [this](const ServerLoop::Connections& now) { note(now); }) {
    thread_ = start_quiet_thread([this] {
      if (!loop_.run()) end_.notify();
    });
  }

  ~Impl() {
    loop_.stop();
    thread_.join();
  }

  const net::HostPort& address() const { return loop_.address(); }
  int end_fd() const { return end_.fd(); }

  std::size_t client_count() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return now_.clients;
  }

  void stop_listening() EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      closing_ = true;
    }
    loop_.stop_listening();
  }

  void erase_all(std::string prefix) { loop_.erase_all(std::move(prefix)); }

  bool wait_until_idle(const Deadline& deadline) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (!is_idle()) {
      if (!changed_.wait_until(mutex_, deadline)) return is_idle();
    }
    return true;
  }

 private:
  void note(const ServerLoop::Connections& now) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    now_ = now;
    changed_.notify_all();
  }

  // As long as an address that is to be closed is open, another client may come.
  bool is_idle() const REQUIRES(mutex_) { return now_.clients == now_.given_up && !(closing_ && now_.is_listening); }

  Mutex mutex_;
  Condition changed_;
  ServerLoop::Connections now_ GUARDED_BY(mutex_);
  bool closing_ GUARDED_BY(mutex_) = false;  // stop_listening was called
  EventFd end_;
  ServerLoop loop_;
  std::thread thread_;
};

TcpStoreServer::TcpStoreServer(const TcpStoreServerOptions& options) : impl_(make_owned_here<Impl>(options)) {}
TcpStoreServer::~TcpStoreServer() = default;

const net::HostPort& TcpStoreServer::address() const { return impl_->address(); }
int TcpStoreServer::end_fd() const { return impl_->end_fd(); }
std::size_t TcpStoreServer::client_count() const { return impl_->client_count(); }
void TcpStoreServer::erase_all(std::string prefix) { impl_->erase_all(std::move(prefix)); }
void TcpStoreServer::stop_listening() { impl_->stop_listening(); }
bool TcpStoreServer::wait_until_idle(const Deadline& deadline) { return impl_->wait_until_idle(deadline); }

}  // namespace lockstep::store
