// SPDX-License-Identifier: Apache-2.0
#include "runtime/store/client/tcp_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/net/stream.h"
#include "runtime/store/client/wire_keys.h"
#include "runtime/store/messages.h"

namespace lockstep::store {
namespace {

using proto::Op;

constexpr proto::Limits kLimits;

// The parts of error messages that say why the store does not answer, and where to look.
constexpr std::string_view kHostEnded =
    "the process that hosts the store (the launcher or rank 0) has ended or refused this request: look at the output "
    "of that process";
constexpr std::string_view kHostVanished =
    "the host of the store does not answer any more: look whether that host has stopped, or the network to it is cut";
constexpr std::string_view kHostSilent =
    "the process that hosts the store may be stopped, or the network between may be cut: look at that process's host";

// Returns the milliseconds until the deadline, as the number that a request gives to the server. The returned time is 0
// if the deadline has passed, and -1 if the deadline never comes.
std::int64_t timeout_of(const Deadline& deadline) {
  if (deadline.is_never()) return -1;
  return std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()).count();
}

Frame frame_of(const proto::Contents& reply) {
  return {.status = static_cast<std::uint8_t>(reply.number), .list = {reply.values.begin(), reply.values.end()}};
}

// Returns whether `error` is an errno value that says that the host at the other end of a connection can't be reached.
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
    : server_(endpoint.address), options_(options), endpoint_(endpoint) {
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
    throw InvalidArgument(fmt::format(
        "store: the request {} of {} keys has {} bytes, and at most {} are possible; split the request",
        proto::shape_of(request.op).name, request.contents.keys.size(), bytes.size(), kLimits.max_message_bytes));
  }
  return bytes;
}

// Returns the deadline for a new connection.
Deadline TcpStore::unless_stopped(const Deadline& deadline) const {
  if (given_up_.is_set()) return deadline.sooner(options_.give_up_timeout);
  if (stop_.is_set()) return deadline.sooner(options_.cancel_timeout);
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
  // Connect without holding mutex_, because connecting takes a while, and other threads must not wait for mutex_ so
  // long.
  const Deadline limit = unless_stopped(deadline);
  try {
    return TcpConnection::open_once(endpoint_, limit, stop());
  } catch (const net::ConnectionClosed&) {
    // Try once more, because a server with too many clients closes the client that has been in its greeting longest,
    // which may be this client.
    return TcpConnection::open_once(endpoint_, limit, stop());
  }
}

void TcpStore::give_back(TcpConnection connection) {
  MutexLock lock(mutex_);
  idle_.push_back(std::move(connection));
  has_been_used_ = true;
}

void TcpStore::rest() {
  std::vector<TcpConnection> closed;  // declared before the lock, so that the connections are closed after the unlock
  MutexLock lock(mutex_);
  if (!std::exchange(has_been_used_, false)) closed.swap(idle_);
}

StoreLost TcpStore::lost(const std::string& what, std::string_view how, std::string_view hint) const {
  return StoreLost(fmt::format("store ({}): {}: {}; {}", description(), what, how, hint));
}

void TcpStore::with_connection(const std::string& what, const Deadline& deadline,
                               const std::function<void(TcpConnection&)>& body) {
  owner_.require(what);
  try {
    TcpConnection connection = take(deadline);
    // The connection returns to the pool only after the request's answer has arrived. After an error the connection is
    // closed, because the next request on the connection would read the late answer to this request.
    body(connection);
    give_back(std::move(connection));
  } catch (const net::ConnectionClosed& error) {
    throw lost(what, error.what(), kHostEnded);
  } catch (const SystemError& error) {
    throw lost(what, error.what(), is_of_a_vanished_host(error.error_number()) ? kHostVanished : kHostEnded);
  } catch (const CorruptData& error) {
    throw lost(what, error.what(), kHostEnded);
  } catch (const Timeout&) {
    throw lost(what, "no answer, " + deadline.progress(), kHostSilent);
  }
}

// Returns the time by which the server must have answered a request that waits at the server until `deadline`.
Deadline TcpStore::answer_deadline(const Deadline& deadline) const {
  if (deadline.is_never()) return deadline;
  return Deadline::after(deadline.remaining() + options_.cancel_timeout);
}

TcpStore::Reply TcpStore::exchange(const std::string& what, const proto::Request& request) {
  const std::string bytes = bytes_of(request);
  const Deadline deadline = Deadline::after(options_.request_timeout);
  Reply reply;
  with_connection(what, deadline, [&](TcpConnection& connection) {
    connection.send(bytes, deadline);
    const proto::Contents& contents = connection.receive(request.op, request.contents.keys.size(), deadline);
    reply = {contents.number, {contents.keys.begin(), contents.keys.end()}, frame_of(contents)};
  });
  return reply;
}

Frame TcpStore::ask_and_wait(const std::string& what, const proto::Request& request, const Deadline& deadline) {
  const std::string bytes = bytes_of(request);
  const Deadline answer = answer_deadline(deadline);
  Frame frame;
  with_connection(what, answer, [&](TcpConnection& connection) {
    connection.send(bytes, answer);
    // The answer and the cancel may cross. A cancelled wait has one answer. If the server answered the wait before
    // CANCEL_WAIT arrived, the server also answers CANCEL_WAIT. Read both answers, to the wait and to CANCEL_WAIT,
    // because the next request on this connection must not get the answer to CANCEL_WAIT.
    const bool stopped = !connection.await_reply(answer);
    if (stopped) connection.send(bytes_of({Op::cancel_wait, {}}), answer);
    frame = frame_of(connection.receive(request.op, 0, answer));
    if (!stopped) return;
    if (frame.status == proto::kCancelled) {
      frame.status = proto::kMissing;
    } else {
      connection.receive(Op::cancel_wait, 0, answer);
    }
  });
  check_status(what, frame);
  return frame;
}

void TcpStore::check_status(const std::string& what, const Frame& frame) const {
  if (frame.status == proto::kOk || frame.status == proto::kMissing || frame.status == proto::kRefused) return;
  throw StoreError(
      fmt::format("store ({}): {}: the server sent the unknown status {}; run one version of lockstep on every host",
                  description(), what, frame.status));
}

void TcpStore::stop_waiting() { stop_.notify(); }

void TcpStore::give_up() {
  given_up_.notify();
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
  const Frame frame = exchange(what, request).frame;
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
  for (std::string& key : frame.list) key.erase(0, 1);  // without the prefix that the key has on the wire
  throw_wait_timeout(description(), keys, frame.list, deadline);
}

std::int64_t TcpStore::add(std::string_view key, std::int64_t delta) {
  const std::string name = wire_key(description(), key);
  const std::string what = fmt::format("add {} to '{}' (which must be a decimal number)", delta, key);
  return exchange(what, {Op::add, {{name}, {}, delta}}).number;
}

std::string TcpStore::compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
  const std::string name = wire_key(description(), key);
  const proto::Request request{Op::compare_set,
                               {{name}, {checked_value(key, expected), checked_value(key, desired)}, 0}};
  return exchange(fmt::format("compare_set '{}'", key), request).frame.list.at(0);
}

bool TcpStore::check(std::span<const std::string> keys) {
  if (keys.empty()) return true;
  const WireKeys names(description(), keys);
  const proto::Request request{Op::check, {names.views, {}, 0}};
  return exchange(fmt::format("check {} keys", keys.size()), request).number == proto::kReady;
}

bool TcpStore::erase(std::string_view key) {
  const std::string name = wire_key(description(), key);
  return exchange(fmt::format("erase '{}'", key), {Op::delete_key, {{name}, {}, 0}}).number != 0;
}

std::int64_t TcpStore::num_keys() { return exchange("num_keys", {Op::num_keys, {}}).number; }

std::vector<std::string> TcpStore::list_keys() {
  std::vector<std::string> keys;
  for (const std::string& key : exchange("list_keys", {Op::list_keys, {}}).keys) {
    if (key.starts_with(kKeyPrefix)) keys.push_back(key.substr(1));
  }
  std::sort(keys.begin(), keys.end());
  return keys;
}

}  // namespace lockstep::store
