// SPDX-License-Identifier: Apache-2.0
#include "runtime/store/server/tcp_store_server.h"

#include <thread>
#include <utility>

#include "runtime/base/event_fd.h"
#include "runtime/base/mutex.h"
#include "runtime/base/quiet_thread.h"
#include "runtime/store/server/server_loop.h"

namespace lockstep::store {

namespace {

// The time that wait_until_idle() waits for connections that have not finished their greeting. A client that has just
// connected finishes its greeting within kLastGreetings.
constexpr std::chrono::milliseconds kLastGreetings{500};

}  // namespace

class TcpStoreServer::Impl {
 public:
  explicit Impl(const TcpStoreServerOptions& options)
      : loop_(options, [this](const ServerLoop::Connections& now) { note(now); }) {
    thread_ = start_quiet_thread([this] {
      if (!loop_.run()) end_.notify();
    });
  }

  ~Impl() {
    // Join the thread before any member is destroyed, because the thread writes the numbers of connections into now_
    // until it ends.
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
      // Set closing_ at once, because the loop closes the listener later. Until the listener is closed,
      // wait_until_idle() counts the server as busy.
      closing_ = true;
    }
    loop_.stop_listening();
  }

  void erase_all(std::string prefix) { loop_.erase_all(std::move(prefix)); }

  bool wait_until_idle(const Deadline& deadline) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const Deadline greetings = deadline.sooner(kLastGreetings);
    while (!is_idle(now_.clients) && changed_.wait_until(mutex_, greetings)) {
    }
    if (is_idle(now_.clients)) return true;
    if (deadline.expired()) return false;
    loop_.end_greetings(kLastGreetings);
    // After end_greetings(), wait_until_idle() does not wait for clients that are still in their greeting.
    const auto is_over = [this]() REQUIRES(mutex_) {
      return is_idle(now_.clients) || (now_.has_ended_greetings && is_idle(now_.clients - now_.greeting));
    };
    while (!is_over()) {
      if (!changed_.wait_until(mutex_, deadline)) return is_over();
    }
    return true;
  }

 private:
  void note(const ServerLoop::Connections& now) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    now_ = now;
    changed_.notify_all();
  }

  // Returns whether `clients` is the number of clients that the extension has given up. After stop_listening(), returns
  // false until the listener is closed, because another client may still connect.
  bool is_idle(std::size_t clients) const REQUIRES(mutex_) {
    return clients == now_.given_up && !(closing_ && now_.is_listening);
  }

  Mutex mutex_;
  Condition changed_;
  ServerLoop::Connections now_ GUARDED_BY(mutex_);
  bool closing_ GUARDED_BY(mutex_) = false;  // true once stop_listening() was called
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
