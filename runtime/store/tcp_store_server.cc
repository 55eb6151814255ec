#include "runtime/store/tcp_store_server.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/base/mutex.h"
#include "runtime/base/quiet_thread.h"
#include "runtime/base/unique_fd.h"
#include "runtime/net/event_loop.h"
#include "runtime/net/stream.h"
#include "runtime/net/tcp_socket.h"
#include "runtime/store/key_table.h"
#include "runtime/store/server_session.h"

namespace lockstep::store {
namespace {

constexpr std::size_t kReadBytes = std::size_t{64} << 10;
// How long no connection is accepted after the process ran out of descriptors or memory for one.
constexpr auto kAcceptPause = std::chrono::milliseconds(100);
// Connections accepted before the clients that are there get their turn.
constexpr int kAcceptBatch = 64;

}  // namespace

// Everything below the first block belongs to the loop's thread.
class TcpStoreServer::Impl {
 public:
  explicit Impl(const TcpStoreServerOptions& options)
      : options_(options),
        listener_(net::tcp_listen(options.listen)),
        address_(net::local_address(listener_.get())),
        table_(options.max_stored_bytes),
        read_buffer_(kReadBytes, '\0') {
    loop_.add(listener_.get(), EPOLLIN, [this](std::uint32_t) { accept(); });
    thread_ = start_quiet_thread([this] { run(); });
  }

  ~Impl() {
    loop_.stop();
    thread_.join();
  }

  const net::HostPort& address() const { return address_; }

  std::size_t client_count() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return client_count_;
  }

  void stop_listening() EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      closing_ = true;
    }
    loop_.post([this] { close_listener(); });
  }

  bool wait_until_idle(const Deadline& deadline) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (!idle()) {
      if (!idle_.wait_until(mutex_, deadline)) return idle();
    }
    return true;
  }

 private:
  using ClientId = KeyTable::WaiterId;

  struct Client {
    Client(UniqueFd socket, KeyTable& table, ClientId id, const proto::Limits& limits)
        : fd(std::move(socket)), peer(net::describe_peer(fd.get())), session(table, id, limits) {}

    UniqueFd fd;
    std::string peer;
    ServerSession session;
    std::uint32_t interest = EPOLLIN | EPOLLRDHUP;
  };

  void run() {
    try {
      loop_.run();
    } catch (const std::exception& error) {
      log_error("store server at {}: ends, all clients are closed: {}", address_.to_string(), error.what());
    }
    clients_.clear();
    close_listener();
    note_client_count();
  }

  void close_listener() EXCLUDES(mutex_) {
    if (!listener_) return;
    loop_.remove(listener_.get());
    listener_.reset();
    MutexLock lock(mutex_);
    listening_ = false;
    if (idle()) idle_.notify_all();
  }

  // As long as an address that is to be closed is open, another client may come.
  bool idle() const REQUIRES(mutex_) { return client_count_ == 0 && !(closing_ && listening_); }

  void accept() {
    for (int i = 0; i < kAcceptBatch; ++i) {
      UniqueFd fd;
      try {
        fd = net::tcp_try_accept(listener_.get());
      } catch (const SystemError& error) {
        log_warn("store server at {}: {} clients are connected, the next can't be: {}; raise 'ulimit -n'",
                 address_.to_string(), clients_.size(), error.what());
        loop_.change(listener_.get(), 0);
        loop_.run_after(kAcceptPause, [this] {
          if (listener_) loop_.change(listener_.get(), EPOLLIN);
        });
        return;
      }
      if (!fd) return;
      if (clients_.size() >= options_.max_clients) {
        log_warn("store server at {}: closed {}: {} clients are connected, the limit is {}", address_.to_string(),
                 net::describe_peer(fd.get()), clients_.size(), options_.max_clients);
        continue;
      }
      welcome(std::move(fd));
    }
  }

  void welcome(UniqueFd fd) {
    const ClientId id = next_id_++;
    auto client = std::make_unique<Client>(std::move(fd), table_, id, options_.limits);
    loop_.add(client->fd.get(), client->interest, [this, id](std::uint32_t events) { on_ready(id, events); });
    clients_.emplace(id, std::move(client));
    note_client_count();
    loop_.run_after(options_.greeting_timeout, [this, id] {
      const auto found = clients_.find(id);
      if (found == clients_.end() || found->second->session.greeted()) return;
      refuse(id, *found->second, "it sent no greeting");
    });
  }

  void on_ready(ClientId id, std::uint32_t events) {
    Client& client = *clients_.at(id);
    const bool reading = (client.interest & EPOLLIN) != 0;
    const bool gone = (events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0;
    if ((events & EPOLLIN) != 0 || (gone && reading)) {
      if (!receive(id, client)) return;
    } else if (gone) {
      return close(id, client);
    }
    settle(id, client);
    serve_woken();
  }

  // Reads once: the loop comes back to a client that has more, after the others. False if the client is closed.
  bool receive(ClientId id, Client& client) {
    const ssize_t received = ::recv(client.fd.get(), read_buffer_.data(), read_buffer_.size(), MSG_DONTWAIT);
    if (received < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (received <= 0) {
      close(id, client);
      return false;
    }
    const std::string_view bytes(read_buffer_.data(), static_cast<std::size_t>(received));
    if (client.session.receive(bytes)) return true;
    refuse(id, client, client.session.close_reason());
    // What it sent before may have woken others.
    serve_woken();
    return false;
  }

  // Sends what can be sent and asks the loop for what this client needs next.
  void settle(ClientId id, Client& client) {
    while (!client.session.output().empty()) {
      const std::string_view output = client.session.output();
      const ssize_t count = ::send(client.fd.get(), output.data(), output.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno == EAGAIN) break;
      if (count < 0) return close(id, client);
      if (!client.session.sent(static_cast<std::size_t>(count))) {
        return refuse(id, client, client.session.close_reason());
      }
    }
    std::uint32_t interest = EPOLLRDHUP;
    if (client.session.wants_input()) interest |= EPOLLIN;
    if (!client.session.output().empty()) interest |= EPOLLOUT;
    if (interest == client.interest) return;
    loop_.change(client.fd.get(), interest);
    client.interest = interest;
  }

  // Answers the clients whose keys have come. What they had sent behind their WAIT may wake others in turn.
  void serve_woken() {
    for (auto woken = table_.take_woken(); !woken.empty(); woken = table_.take_woken()) {
      for (const ClientId id : woken) {
        const auto found = clients_.find(id);
        if (found == clients_.end()) continue;
        Client& client = *found->second;
        if (client.session.wake()) {
          settle(id, client);
        } else {
          refuse(id, client, client.session.close_reason());
        }
      }
    }
  }

  void refuse(ClientId id, Client& client, const std::string& reason) {
    log_warn("store server at {}: closed {}: {}", address_.to_string(), client.peer, reason);
    close(id, client);
  }

  void close(ClientId id, Client& client) {
    loop_.remove(client.fd.get());
    clients_.erase(id);
    note_client_count();
  }

  void note_client_count() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    client_count_ = clients_.size();
    if (idle()) idle_.notify_all();
  }

  const TcpStoreServerOptions options_;
  UniqueFd listener_;
  const net::HostPort address_;
  Mutex mutex_;
  Condition idle_;
  std::size_t client_count_ GUARDED_BY(mutex_) = 0;
  bool closing_ GUARDED_BY(mutex_) = false;  // stop_listening was called
  bool listening_ GUARDED_BY(mutex_) = true;

  net::EventLoop loop_;
  KeyTable table_;  // before the clients, whose sessions point to it
  std::unordered_map<ClientId, std::unique_ptr<Client>> clients_;
  ClientId next_id_ = 1;
  std::string read_buffer_;

  std::thread thread_;
};

TcpStoreServer::TcpStoreServer(const TcpStoreServerOptions& options) : impl_(std::make_unique<Impl>(options)) {}
TcpStoreServer::~TcpStoreServer() = default;

const net::HostPort& TcpStoreServer::address() const { return impl_->address(); }
std::size_t TcpStoreServer::client_count() const { return impl_->client_count(); }
void TcpStoreServer::stop_listening() { impl_->stop_listening(); }
bool TcpStoreServer::wait_until_idle(const Deadline& deadline) { return impl_->wait_until_idle(deadline); }

}  // namespace lockstep::store
