#include "runtime/store/client/tcp_store.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "runtime/base/error.h"
#include "runtime/net/stream.h"
#include "runtime/store/client/wire_keys.h"
#include "runtime/store/messages.h"

namespace lockstep::store {
namespace {

using proto::Op;

constexpr proto::Limits kLimits;

UniqueFd make_signal() {
  UniqueFd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd) throw SystemError("eventfd", errno);
  return fd;
}

bool is_raised(const UniqueFd& signal) {
  pollfd entry{.fd = signal.get(), .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, 0) > 0;
}

void raise(const UniqueFd& signal) {
  const std::uint64_t one = 1;
  while (::write(signal.get(), &one, sizeof one) < 0) {
    if (errno == EAGAIN) return;  // it is readable
    if (errno != EINTR) throw SystemError("write to an eventfd", errno);
  }
}

// For the server, in ms: 0 if the deadline has passed, less if there is none.
std::int64_t timeout_of(const Deadline& deadline) {
  if (deadline.is_never()) return -1;
  return std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()).count();
}

Frame frame_of(const proto::Contents& reply) {
  return {.status = static_cast<std::uint8_t>(reply.number), .list = {reply.values.begin(), reply.values.end()}};
}

// True for the kernel's errors on a connection whose other end it can't reach any more.
bool is_of_a_vanished_host(int error) {
  return error == ETIMEDOUT || error == EHOSTUNREACH || error == EHOSTDOWN || error == ENETUNREACH || error == ENETDOWN;
}

}  // namespace

std::string_view TcpStore::checked_value(std::string_view key, std::string_view value) const {
  check_sizes(description(), key, value);
  return value;
}

TcpStore::TcpStore(const net::HostPort& server, const Deadline& deadline, const TcpStoreOptions& options)
    : TcpStore(Endpoint{.address = server}, deadline, options) {}

TcpStore::TcpStore(const Endpoint& endpoint, const Deadline& deadline, const TcpStoreOptions& options)
    : server_(endpoint.address),
      options_(options),
      endpoint_(endpoint),
      stop_(make_signal()),
      given_up_(make_signal()) {
  try {
    TcpConnection connection = TcpConnection::open(endpoint, deadline);
    connection.stop_by(stop());
    endpoint_.address = connection.peer();
    give_back(std::move(connection));
  } catch (const Timeout& error) {
    throw Timeout(fmt::format("store ({}): {}", description(), error.what()));
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("store ({}): {}", description(), error.what()));
  } catch (const Error& error) {
    throw StoreError(fmt::format("store ({}): {}", description(), error.what()));
  }
}

std::string TcpStore::description() const { return fmt::format("tcp {}", server_.to_string()); }

std::string TcpStore::bytes_of(const proto::Request& request) const {
  std::string bytes;
  proto::write_request(bytes, request);
  if (bytes.size() > kLimits.max_message_bytes) {
    throw InvalidArgument(fmt::format("store: {} of {} keys has {} bytes; at most {} are possible: split it",
                                      proto::shape_of(request.op).name, request.contents.keys.size(), bytes.size(),
                                      kLimits.max_message_bytes));
  }
  return bytes;
}

// The deadline for a new connection.
Deadline TcpStore::unless_stopped(const Deadline& deadline) const {
  if (is_raised(given_up_)) return deadline.sooner(options_.give_up_timeout);
  if (is_raised(stop_)) return deadline.sooner(options_.cancel_timeout);
  return deadline;
}

TcpConnection TcpStore::take(const Deadline& deadline) {
  {
    MutexLock lock(mutex_);
    if (!idle_.empty()) {
      TcpConnection connection = std::move(idle_.back());
      idle_.pop_back();
      return connection;
    }
  }
  const Deadline limit = unless_stopped(deadline);
  try {
    return TcpConnection::open_once(endpoint_, limit, stop());
  } catch (const net::ConnectionClosed&) {
    // A server that is flooded makes room by closing who is at its greeting longest.
    return TcpConnection::open_once(endpoint_, limit, stop());
  }
}

void TcpStore::give_back(TcpConnection connection) {
  MutexLock lock(mutex_);
  idle_.push_back(std::move(connection));
}

StoreLost TcpStore::lost(const std::string& what, const std::exception& error) const {
  return StoreLost(
      fmt::format("store ({}): {}: {}; the process that hosts the store, which is the launcher or rank 0, "
                  "has ended or refused this request: look at what it said",
                  description(), what, error.what()));
}

StoreLost TcpStore::vanished(const std::string& what, const std::exception& error) const {
  return StoreLost(
      fmt::format("store ({}): {}: {}; the host of the store does not answer any more: it has stopped, or "
                  "the network to it is cut",
                  description(), what, error.what()));
}

StoreLost TcpStore::silent(const std::string& what, const Deadline& deadline) const {
  return StoreLost(
      fmt::format("store ({}): {}: no answer, {}; the process that hosts the store may be stopped, or the "
                  "network between may be cut",
                  description(), what, deadline.progress()));
}

void TcpStore::with_connection(const std::string& what, const Deadline& deadline,
                               const std::function<void(TcpConnection&)>& body) {
  owner_.require(what);
  try {
    TcpConnection connection = take(deadline);
    body(connection);
    give_back(std::move(connection));
  } catch (const net::ConnectionClosed& error) {
    throw lost(what, error);
  } catch (const SystemError& error) {
    throw is_of_a_vanished_host(error.error_number()) ? vanished(what, error) : lost(what, error);
  } catch (const CorruptData& error) {
    throw lost(what, error);
  } catch (const Timeout&) {
    throw silent(what, deadline);
  }
}

// When the answer to a request that waits until `deadline` must be here.
Deadline TcpStore::answer_deadline(const Deadline& deadline) const {
  if (deadline.is_never()) return deadline;
  return Deadline::after(deadline.remaining() + options_.cancel_timeout);
}

void TcpStore::exchange(const std::string& what, const proto::Request& request,
                        const std::function<void(const proto::Contents&)>& use_reply) {
  const std::string bytes = bytes_of(request);
  const Deadline deadline = Deadline::after(options_.request_timeout);
  with_connection(what, deadline, [&](TcpConnection& connection) {
    connection.send(bytes, deadline);
    use_reply(connection.receive(request.op, request.contents.keys.size(), deadline));
  });
}

Frame TcpStore::ask_and_wait(const std::string& what, const proto::Request& request, const Deadline& deadline) {
  const std::string bytes = bytes_of(request);
  const Deadline answer = answer_deadline(deadline);
  Frame frame;
  with_connection(what, answer, [&](TcpConnection& connection) {
    connection.send(bytes, answer);
    const bool stopped = !connection.await_reply(answer);
    if (stopped) connection.send(bytes_of({Op::cancel_wait, {}}), answer);
    frame = frame_of(connection.receive(request.op, 0, answer));
    if (!stopped) return;
    if (frame.status == proto::kCancelled) {
      frame.status = proto::kMissing;
    } else {
      // The answer came just now, and the one to CANCEL_WAIT is behind it.
      connection.receive(Op::cancel_wait, 0, answer);
    }
  });
  check_status(what, frame);
  return frame;
}

void TcpStore::check_status(const std::string& what, const Frame& frame) const {
  if (frame.status == proto::kOk || frame.status == proto::kMissing || frame.status == proto::kRefused) return;
  throw StoreError(fmt::format("store ({}): {}: an answer with status {}", description(), what, frame.status));
}

void TcpStore::stop_waiting() { raise(stop_); }

void TcpStore::give_up() {
  raise(given_up_);
  stop_waiting();
}

void TcpStore::throw_refused(const std::string& what, const Frame& frame) const {
  throw StoreError(fmt::format("store ({}): {}: refused: {}", description(), what,
                               frame.list.empty() ? "without a reason" : frame.list.front()));
}

void TcpStore::set(std::string_view key, std::string_view value) {
  const std::string name = wire_key(description(), key);
  const std::string what = fmt::format("set '{}'", key);
  const proto::Request request{Op::set_acked, {{name}, {checked_value(key, value)}, 0}};
  Frame frame;
  exchange(what, request, [&](const proto::Contents& reply) { frame = frame_of(reply); });
  check_status(what, frame);
  if (frame.status != proto::kOk) throw_refused(what, frame);
}

std::string TcpStore::get(std::string_view key, const Deadline& deadline) {
  const std::string plain(key);
  return multi_get(std::span(&plain, 1), deadline).front();
}

std::vector<std::string> TcpStore::multi_get(std::span<const std::string> keys, const Deadline& deadline) {
  if (keys.empty()) return {};
  const std::string what = fmt::format("get {}", quoted_keys(keys));
  const WireKeys names(description(), keys);
  Frame frame = ask_and_wait(what, {Op::wait_get, {names.views, {}, timeout_of(deadline)}}, deadline);
  if (frame.status == proto::kRefused) throw_refused(what, frame);
  if (frame.status == proto::kOk && frame.list.size() == keys.size()) return std::move(frame.list);
  for (std::string& key : frame.list) key.erase(0, 1);  // as it went over the wire
  throw_wait_timeout(description(), keys, frame.list, deadline);
}

std::int64_t TcpStore::add(std::string_view key, std::int64_t delta) {
  const std::string name = wire_key(description(), key);
  std::int64_t sum = 0;
  exchange(fmt::format("add {} to '{}' (which must be a decimal number)", delta, key), {Op::add, {{name}, {}, delta}},
           [&](const proto::Contents& reply) { sum = reply.number; });
  return sum;
}

std::string TcpStore::compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
  const std::string name = wire_key(description(), key);
  const proto::Request request{Op::compare_set,
                               {{name}, {checked_value(key, expected), checked_value(key, desired)}, 0}};
  std::string stored;
  exchange(fmt::format("compare_set '{}'", key), request,
           [&](const proto::Contents& reply) { stored = reply.values.at(0); });
  return stored;
}

bool TcpStore::check(std::span<const std::string> keys) {
  if (keys.empty()) return true;
  const WireKeys names(description(), keys);
  bool ready = false;
  exchange(fmt::format("check {} keys", keys.size()), {Op::check, {names.views, {}, 0}},
           [&](const proto::Contents& reply) { ready = reply.number == proto::kReady; });
  return ready;
}

bool TcpStore::erase(std::string_view key) {
  const std::string name = wire_key(description(), key);
  bool erased = false;
  exchange(fmt::format("erase '{}'", key), {Op::delete_key, {{name}, {}, 0}},
           [&](const proto::Contents& reply) { erased = reply.number != 0; });
  return erased;
}

std::int64_t TcpStore::num_keys() {
  std::int64_t count = 0;
  exchange("num_keys", {Op::num_keys, {}}, [&](const proto::Contents& reply) { count = reply.number; });
  return count;
}

std::vector<std::string> TcpStore::list_keys() {
  std::vector<std::string> keys;
  exchange("list_keys", {Op::list_keys, {}}, [&](const proto::Contents& reply) {
    for (const std::string_view key : reply.keys) {
      if (key.starts_with(kKeyPrefix)) keys.emplace_back(key.substr(1));
    }
  });
  std::sort(keys.begin(), keys.end());
  return keys;
}

}  // namespace lockstep::store
