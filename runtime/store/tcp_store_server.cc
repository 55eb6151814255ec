#include "runtime/store/tcp_store_server.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/base/mutex.h"
#include "runtime/base/quiet_thread.h"
#include "runtime/base/unique_fd.h"
#include "runtime/net/event_loop.h"
#include "runtime/net/open_files.h"
#include "runtime/net/stream.h"
#include "runtime/net/tcp_liveness.h"
#include "runtime/net/tcp_socket.h"
#include "runtime/store/complaint_log.h"
#include "runtime/store/member_service.h"
#include "runtime/store/server_session.h"
#include "runtime/store/server_state.h"

namespace lockstep::store {
namespace {

constexpr std::size_t kReadBytes = std::size_t{64} << 10;
// How long no connection is accepted after the process ran out of descriptors or memory for one.
constexpr auto kAcceptPause = std::chrono::milliseconds(100);
// Connections accepted before the clients that are there get their turn.
constexpr int kAcceptBatch = 64;
// Lines about bad clients in a time.
constexpr std::size_t kComplaints = 20;
constexpr auto kComplaintWindow = std::chrono::seconds(10);
// A member's host that is silent for so long is gone for the kernel too. Above what makes a member silent, which says
// more.
constexpr auto kDeadHost = std::chrono::seconds(10);

}  // namespace

// Everything below the first block belongs to the loop's thread.
class TcpStoreServer::Impl : public SessionHost {
 public:
  explicit Impl(const TcpStoreServerOptions& options)
      : options_(options),
        listener_(net::tcp_listen(options.listen)),
        address_(net::local_address(listener_.get())),
        complaints_(kComplaints, kComplaintWindow),
        state_(rules_of(options)),
        members_(ProcessInfo::of_this_process(), {}, options.membership),
        read_buffer_(kReadBytes, '\0') {
    state_.keys.observe([this](std::string_view key, const std::string* before, const std::string* after) {
      tell_watchers(key, before, after);
    });
    loop_.add(listener_.get(), EPOLLIN, [this](std::uint32_t) { accept(); });
    thread_ = start_quiet_thread([this] { run(); });
  }

  ~Impl() override {
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
  using Clock = std::chrono::steady_clock;

  struct Client {
    Client(UniqueFd socket, ServerState& state, SessionHost& host, SessionId id)
        : fd(std::move(socket)), peer(net::describe_peer(fd.get())), session(state, host, id) {}

    std::string host() const { return peer.substr(0, peer.rfind(':')); }

    UniqueFd fd;
    std::string peer;
    ServerSession session;
    std::uint32_t interest = EPOLLIN | EPOLLRDHUP;
    bool is_legacy = false;  // and counted in legacy_hosts_
    net::EventLoop::TimerId timer = {};
  };

  static ServerState::Rules rules_of(const TcpStoreServerOptions& options) {
    return {.limits = options.limits,
            .table = {.max_bytes = options.max_stored_bytes,
                      .max_entries = options.max_keys,
                      .max_value_bytes = options.limits.max_value_bytes,
                      .max_waited_keys = options.max_waited_keys},
            .max_watches = options.max_watched_keys,
            .max_client_bytes = options.max_client_bytes,
            .secret = options.secret,
            .run_id = options.run_id,
            .refusal_delay = options.refusal_delay};
  }

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
        const net::OpenFilesLimit limit = net::open_files_limit();
        warn(
            fmt::format("{} clients are connected, the next can't be: {}; this process may have {} descriptors: raise "
                        "'ulimit -n' (up to {} without more rights)",
                        clients_.size(), error.what(), limit.soft, limit.hard));
        loop_.change(listener_.get(), 0);
        loop_.run_after(kAcceptPause, [this] {
          if (listener_) loop_.change(listener_.get(), EPOLLIN);
        });
        break;
      }
      if (!fd) break;
      if (clients_.size() >= options_.max_clients) {
        warn(fmt::format("closed {}: {} clients are connected, the limit is {}", net::describe_peer(fd.get()),
                         clients_.size(), options_.max_clients));
        continue;
      }
      welcome(std::move(fd));
    }
    note_client_count();
    serve_woken();
  }

  void welcome(UniqueFd fd) {
    while (greeting_.size() >= options_.max_greeting_clients) {
      const SessionId oldest = greeting_.begin()->first;
      refuse(oldest, fmt::format("{} clients have not finished their greeting, the limit is {}; this one is at it "
                                 "longest",
                                 greeting_.size(), options_.max_greeting_clients));
    }
    const SessionId id = next_id_++;
    auto client = std::make_unique<Client>(std::move(fd), state_, *this, id);
    loop_.add(client->fd.get(), client->interest, [this, id](std::uint32_t events) { on_ready(id, events); });
    clients_.emplace(id, std::move(client));
    greeting_.emplace_hint(greeting_.end(), id, Clock::now() + options_.greeting_timeout);
    if (greeting_.size() == 1) check_greetings();
  }

  // Closes who is too long at its greeting, and comes back when the next will be.
  void check_greetings() {
    const auto now = Clock::now();
    while (!greeting_.empty() && greeting_.begin()->second <= now) {
      const SessionId id = greeting_.begin()->first;
      const Client& client = *clients_.at(id);
      if (client.session.is_silent() && !options_.secret && legacy_hosts_.contains(client.host())) {
        greeting_.erase(id);
      } else {
        refuse(id, "it has not finished its greeting in time");
      }
    }
    loop_.cancel(greeting_timer_);
    if (greeting_.empty()) return;
    greeting_timer_ = loop_.run_after(greeting_.begin()->second - now, [this] {
      check_greetings();
      serve_woken();
      note_client_count();
    });
  }

  void on_ready(SessionId id, std::uint32_t events) {
    try {
      take_turn(id, *clients_.at(id), events);
    } catch (const std::exception& error) {
      // Out of memory, most likely for this client's sake; the others go on.
      refuse(id, error.what());
    }
    serve_woken();
    while (state_.held_bytes > options_.max_held_bytes) close_the_largest();
    note_client_count();
  }

  void take_turn(SessionId id, Client& client, std::uint32_t events) {
    const bool reading = (client.interest & EPOLLIN) != 0;
    const bool gone = (events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0;
    if ((events & EPOLLIN) != 0 || (gone && reading)) {
      if (!receive(id, client)) return;
    } else if (gone) {
      return close(id);
    }
    settle(id, client);
  }

  // Reads once: the loop comes back to a client that has more, after the others. False if the client is closed.
  bool receive(SessionId id, Client& client) {
    const ssize_t received = ::recv(client.fd.get(), read_buffer_.data(), read_buffer_.size(), MSG_DONTWAIT);
    if (received < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (received <= 0) {
      close(id);
      return false;
    }
    const std::string_view bytes(read_buffer_.data(), static_cast<std::size_t>(received));
    if (!client.session.receive(bytes)) {
      refuse(id, client.session.close_reason());
      return false;
    }
    if (!greeting_.empty() && client.session.is_welcome() && greeting_.erase(id) != 0) note_dialect(client);
    return true;
  }

  void note_dialect(Client& client) {
    client.is_legacy = client.session.dialect() == proto::Dialect::legacy;
    if (client.is_legacy) ++legacy_hosts_[client.host()];
  }

  // Sends what can be sent and asks the loop for what this client needs next.
  void settle(SessionId id, Client& client) {
    while (!client.session.output().empty()) {
      const ssize_t count = send_some(client);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno == EAGAIN) break;
      if (count < 0) return close(id);
      if (!client.session.sent(static_cast<std::size_t>(count))) return refuse(id, client.session.close_reason());
    }
    std::uint32_t interest = EPOLLRDHUP;
    if (client.session.wants_input()) interest |= EPOLLIN;
    if (!client.session.output().empty()) interest |= EPOLLOUT;
    if (interest == client.interest) return;
    loop_.change(client.fd.get(), interest);
    client.interest = interest;
  }

  static ssize_t send_some(const Client& client) {
    const std::string_view output = client.session.output();
    return ::send(client.fd.get(), output.data(), output.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }

  // Answers the clients whose keys or ranks have come, and sends what they were pushed. What they had sent behind their
  // wait may wake others in turn; and who can't be sent anything is closed, which befalls its fellow members.
  void serve_woken() {
    for (;;) {
      std::vector<SessionId> woken = state_.keys.take_woken();
      const std::vector<SessionId> released = state_.barriers.take_released();
      woken.insert(woken.end(), released.begin(), released.end());
      for (auto& event : members_.table().take_pushes()) {
        const auto found = clients_.find(event.to);
        if (found == clients_.end()) continue;
        pushed_.push_back(event.to);
        found->second->session.push(MemberService::frame_of(std::move(event)));
      }
      const std::vector<SessionId> pushed = std::exchange(pushed_, {});
      if (woken.empty() && pushed.empty()) return;
      for (const SessionId id : woken) {
        with_client(id, [](ServerSession& session) { return session.wake(); });
      }
      for (const SessionId id : pushed) {
        with_client(id, [](ServerSession& session) { return session.close_reason().empty(); });
      }
    }
  }

  // Lets `act` do something with a client that may have gone, then sends what came of it.
  template <typename Act>
  void with_client(SessionId id, Act&& act) {
    const auto found = clients_.find(id);
    if (found == clients_.end()) return;
    try {
      Client& client = *found->second;
      if (!act(client.session)) return refuse(id, client.session.close_reason());
      settle(id, client);
    } catch (const std::exception& error) {
      refuse(id, error.what());
    }
  }

  void start_timer(SessionId session, std::chrono::nanoseconds delay) override {
    stop_timer(session);
    clients_.at(session)->timer = loop_.run_after(delay, [this, session] {
      with_client(session, [](ServerSession& expired) { return expired.expire(); });
      serve_woken();
      note_client_count();
    });
  }

  void stop_timer(SessionId session) override { loop_.cancel(clients_.at(session)->timer); }

  void complain(SessionId session, const std::string& what) override {
    warn(fmt::format("{}: {}", clients_.at(session)->peer, printable(what, 500)));
  }

  void push_watch_event(SessionId session, const proto::Contents& event) {
    const auto found = clients_.find(session);
    if (found == clients_.end()) return;
    found->second->session.push_watch_event(event);
    pushed_.push_back(session);
  }

  void tell_watchers(std::string_view key, const std::string* before, const std::string* after) {
    for (const SessionId watcher : state_.watches.watchers(key)) {
      const auto kind = after == nullptr    ? proto::kKeyDeleted
                        : before == nullptr ? proto::kKeyCreated
                                            : proto::kKeyUpdated;
      const auto text = [](const std::string* value) { return value == nullptr ? std::string_view() : *value; };
      push_watch_event(watcher, {{key}, {text(before), text(after)}, kind});
    }
  }

  Frame serve_member(SessionId session, const proto::Request& request) override {
    members_.table().observe(Clock::now());
    Frame answer = members_.serve(session, request);
    if (request.op == proto::Op::register_member && answer.status == proto::kOk) {
      net::end_when_host_is_silent(clients_.at(session)->fd.get(), kDeadHost);
      if (!looking_) look_around();
    }
    return answer;
  }

  // As long as there are members.
  void look_around() {
    looking_ = members_.table().present() > 0;
    if (!looking_) return;
    members_.table().observe(Clock::now());
    members_.set_traced(this_process_is_traced());
    members_.table().look_around();
    loop_.run_after(options_.membership.look_interval, [this] {
      look_around();
      serve_woken();
      note_client_count();
    });
  }

  void close_the_largest() {
    const auto largest = std::max_element(clients_.begin(), clients_.end(), [](const auto& a, const auto& b) {
      return a.second->session.held_bytes() < b.second->session.held_bytes();
    });
    refuse(largest->first,
           fmt::format("the server holds {} bytes for all its clients, the limit is {}; this one has most: {} bytes",
                       state_.held_bytes, options_.max_held_bytes, largest->second->session.held_bytes()));
    serve_woken();
  }

  // Closes a client that has done wrong. Without a reason it is in the log already.
  void refuse(SessionId id, const std::string& reason) {
    Client& client = *clients_.at(id);
    if (!reason.empty()) {
      const std::string& role = client.session.role();
      warn(fmt::format("closed {}{}{}{}: {}", client.peer, role.empty() ? "" : " (", role, role.empty() ? "" : ")",
                       printable(reason, 500)));
    }
    if (!client.session.output().empty()) send_some(client);
    close(id);
  }

  void close(SessionId id) {
    const auto found = clients_.find(id);
    const Client& client = *found->second;
    loop_.remove(client.fd.get());
    loop_.cancel(client.timer);
    greeting_.erase(id);
    if (client.is_legacy) {
      const auto place = legacy_hosts_.find(client.host());
      if (--place->second == 0) legacy_hosts_.erase(place);
    }
    clients_.erase(found);
    members_.table().ended(id);
  }

  void warn(const std::string& text) {
    if (complaints_.admit(Clock::now())) {
      log_warn("store server at {}: {}", address_.to_string(), text);
    } else if (!summary_is_due_) {
      summary_is_due_ = true;
      loop_.run_after(complaints_.summary_time() - Clock::now(), [this] {
        summary_is_due_ = false;
        log_warn("store server at {}: {} more such lines were left out", address_.to_string(),
                 complaints_.take_left_out());
      });
    }
  }

  void note_client_count() EXCLUDES(mutex_) {
    if (clients_.size() == noted_clients_) return;
    noted_clients_ = clients_.size();
    MutexLock lock(mutex_);
    client_count_ = noted_clients_;
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
  ComplaintLog complaints_;
  bool summary_is_due_ = false;
  ServerState state_;  // before the clients, whose sessions point to it
  MemberService members_;
  bool looking_ = false;
  std::unordered_map<SessionId, std::unique_ptr<Client>> clients_;
  SessionId next_id_ = 1;
  std::size_t noted_clients_ = 0;
  std::map<SessionId, Clock::time_point> greeting_;  // who hasn't finished, the oldest first, and until when it may
  net::EventLoop::TimerId greeting_timer_;
  std::unordered_map<std::string, std::size_t> legacy_hosts_;  // clients of PyTorch 1.13 on each
  std::vector<SessionId> pushed_;                              // who was sent something unasked
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
