#include "runtime/store/tcp_store.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/net/stream.h"
#include "runtime/store/messages.h"

namespace lockstep::store {
namespace {

using proto::Op;

// PyTorch's clients put this before each key of their users; see proto/PROTOCOL.md.
constexpr char kKeyPrefix = '/';
constexpr proto::Limits kLimits;

static_assert(kMaxKeyBytes + 1 == kLimits.max_key_bytes && kMaxValueBytes == kLimits.max_value_bytes);

std::string bytes_of(const proto::Request& request) {
  std::string bytes;
  proto::write_request(bytes, request);
  if (bytes.size() > kLimits.max_message_bytes) {
    throw InvalidArgument(fmt::format("store: {} of {} keys has {} bytes; at most {} are possible: split it",
                                      proto::shape_of(request.op).name, request.contents.keys.size(), bytes.size(),
                                      kLimits.max_message_bytes));
  }
  return bytes;
}

}  // namespace

std::string TcpStore::wire_key(std::string_view key) const {
  check_sizes(description(), key, {});
  std::string result(1, kKeyPrefix);
  result += key;
  return result;
}

std::string_view TcpStore::checked_value(std::string_view key, std::string_view value) const {
  check_sizes(description(), key, value);
  return value;
}

struct TcpStore::WireKeys {
  std::span<const std::string> plain;
  std::vector<std::string> storage;
  std::vector<std::string_view> views;

  WireKeys(const TcpStore& store, std::span<const std::string> keys) : plain(keys) {
    if (keys.size() > kLimits.max_count) {
      throw InvalidArgument(
          fmt::format("store: {} keys in one call; at most {} are possible: split it", keys.size(), kLimits.max_count));
    }
    storage.reserve(keys.size());
    for (const std::string& key : keys) storage.push_back(store.wire_key(key));
    views.assign(storage.begin(), storage.end());
  }
};

TcpStore::TcpStore(const net::HostPort& server, const Deadline& deadline, const TcpStoreOptions& options)
    : TcpStore(Endpoint{.address = server}, deadline, options) {}

TcpStore::TcpStore(const Endpoint& endpoint, const Deadline& deadline, const TcpStoreOptions& options)
    : server_(endpoint.address), options_(options) {
  const net::HostPort& server = server_;
  if (endpoint.secret) throw StoreError("secrets are not served yet");
  try {
    TcpConnection connection = TcpConnection::open(server, deadline);
    peer_ = connection.peer();
    give_back(std::move(connection));
  } catch (const Timeout& error) {
    throw Timeout(fmt::format("store ({}): {}", description(), error.what()));
  } catch (const Error& error) {
    throw StoreError(fmt::format("store ({}): {}", description(), error.what()));
  }
}

std::string TcpStore::description() const { return fmt::format("tcp {}", server_.to_string()); }

TcpConnection TcpStore::take(const Deadline& deadline) {
  {
    MutexLock lock(mutex_);
    if (!idle_.empty()) {
      TcpConnection connection = std::move(idle_.back());
      idle_.pop_back();
      return connection;
    }
  }
  return TcpConnection::open_once(peer_, deadline);
}

void TcpStore::give_back(TcpConnection connection) {
  MutexLock lock(mutex_);
  idle_.push_back(std::move(connection));
}

StoreError TcpStore::lost(const std::string& what, const std::exception& error) const {
  return StoreError(
      fmt::format("store ({}): {}: {}; the process that hosts the store, which is the launcher or rank 0, "
                  "has ended or refused this request: look at what it said",
                  description(), what, error.what()));
}

StoreError TcpStore::silent(const std::string& what, const Deadline& deadline) const {
  return StoreError(
      fmt::format("store ({}): {}: no answer, {}; the process that hosts the store may be stopped, or the "
                  "network between may be cut",
                  description(), what, deadline.progress()));
}

void TcpStore::with_connection(const std::string& what, const Deadline& deadline,
                               const std::function<void(TcpConnection&)>& body) {
  try {
    TcpConnection connection = take(deadline);
    body(connection);
    give_back(std::move(connection));
  } catch (const net::ConnectionClosed& error) {
    throw lost(what, error);
  } catch (const SystemError& error) {
    throw lost(what, error);
  } catch (const CorruptData& error) {
    throw lost(what, error);
  } catch (const Timeout&) {
    throw silent(what, deadline);
  }
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

void TcpStore::write(const std::string& what, const proto::Request& request) {
  std::string bytes = bytes_of(request);
  proto::write_request(bytes, {Op::ping, {}});
  const Deadline deadline = Deadline::after(options_.request_timeout);
  with_connection(what, deadline, [&](TcpConnection& connection) {
    connection.send(bytes, deadline);
    connection.receive(Op::ping, 0, deadline);
  });
}

void TcpStore::set(std::string_view key, std::string_view value) {
  const std::string name = wire_key(key);
  write(fmt::format("set '{}'", key), {Op::set, {{name}, {checked_value(key, value)}, 0}});
}

void TcpStore::append(std::string_view key, std::string_view value) {
  const std::string name = wire_key(key);
  write(fmt::format("append to '{}'", key), {Op::append, {{name}, {checked_value(key, value)}, 0}});
}

void TcpStore::multi_set(std::span<const std::string> keys, std::span<const std::string> values) {
  check_pairs(description(), keys.size(), values.size());
  if (keys.empty()) return;
  const WireKeys names(*this, keys);
  proto::Request request{Op::multi_set, {names.views, {}, 0}};
  for (std::size_t i = 0; i < keys.size(); ++i) request.contents.values.push_back(checked_value(keys[i], values[i]));
  write(fmt::format("multi_set of {} keys", keys.size()), request);
}

std::int64_t TcpStore::add(std::string_view key, std::int64_t delta) {
  const std::string name = wire_key(key);
  std::int64_t sum = 0;
  exchange(fmt::format("add {} to '{}' (which must be a decimal number)", delta, key), {Op::add, {{name}, {}, delta}},
           [&](const proto::Contents& reply) { sum = reply.number; });
  return sum;
}

std::string TcpStore::compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
  const std::string name = wire_key(key);
  const proto::Request request{Op::compare_set,
                               {{name}, {checked_value(key, expected), checked_value(key, desired)}, 0}};
  std::string stored;
  exchange(fmt::format("compare_set '{}'", key), request,
           [&](const proto::Contents& reply) { stored = reply.values.at(0); });
  return stored;
}

bool TcpStore::check(std::span<const std::string> keys) {
  if (keys.empty()) return true;  // PyTorch's server does not take an empty list well.
  const WireKeys names(*this, keys);
  bool ready = false;
  exchange(fmt::format("check {} keys", keys.size()), {Op::check, {names.views, {}, 0}},
           [&](const proto::Contents& reply) { ready = reply.number == proto::kReady; });
  return ready;
}

bool TcpStore::erase(std::string_view key) {
  const std::string name = wire_key(key);
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

std::string TcpStore::get(std::string_view key, const Deadline& deadline) {
  const std::string plain(key);
  return multi_get(std::span(&plain, 1), deadline).front();
}

void TcpStore::wait(std::span<const std::string> keys, const Deadline& deadline) {
  wait_and(fmt::format("wait for {}", quoted_keys(keys)), keys, deadline, nullptr);
}

std::vector<std::string> TcpStore::multi_get(std::span<const std::string> keys, const Deadline& deadline) {
  std::vector<std::string> values;
  wait_and(fmt::format("get {}", quoted_keys(keys)), keys, deadline,
           [&](TcpConnection& connection, const WireKeys& names) {
             const proto::Request request{keys.size() == 1 ? Op::get : Op::multi_get, {names.views, {}, 0}};
             // The keys are there, so the answer comes at once; the wait's own deadline may just have passed.
             const Deadline answer = Deadline::after(options_.request_timeout);
             connection.send(bytes_of(request), answer);
             const proto::Contents& reply = connection.receive(request.op, keys.size(), answer);
             values.assign(reply.values.begin(), reply.values.end());
           });
  return values;
}

void TcpStore::wait_and(const std::string& what, std::span<const std::string> keys, const Deadline& deadline,
                        const std::function<void(TcpConnection&, const WireKeys&)>& then) {
  if (keys.empty()) return;
  const WireKeys names(*this, keys);
  // A deadline that has passed still asks: the keys may be there.
  const Deadline answer = Deadline::after(
      std::clamp<std::chrono::nanoseconds>(deadline.remaining(), options_.cancel_timeout, options_.request_timeout));
  std::vector<std::string> missing;
  with_connection(what, answer, [&](TcpConnection& connection) {
    connection.send(bytes_of({Op::wait, {names.views, {}, 0}}), answer);
    if (!wait_reply(connection, deadline)) missing = missing_keys(connection, names);
    if (missing.empty() && then) then(connection, names);
  });
  if (!missing.empty()) throw_wait_timeout(description(), keys, missing, deadline);
}

// True if the keys came, false if the deadline did and the wait is cancelled.
bool TcpStore::wait_reply(TcpConnection& connection, const Deadline& deadline) {
  try {
    connection.receive(Op::wait, 0, deadline);
    return true;
  } catch (const Timeout&) {
  }
  const Deadline answer = Deadline::after(options_.cancel_timeout);
  connection.send(bytes_of({Op::cancel_wait, {}}), answer);
  if (connection.receive(Op::cancel_wait, 0, answer).number == proto::kWaitCanceled) return false;
  // The keys came just now: that was the reply to WAIT, and the one to CANCEL_WAIT is behind it.
  connection.receive(Op::cancel_wait, 0, answer);
  return true;
}

std::vector<std::string> TcpStore::missing_keys(TcpConnection& connection, const WireKeys& keys) {
  const Deadline answer = Deadline::after(options_.request_timeout);
  std::string bytes;
  for (const std::string_view key : keys.views) proto::write_request(bytes, {Op::check, {{key}, {}, 0}});
  connection.send(bytes, answer);
  std::vector<std::string> missing;
  for (const std::string& key : keys.plain) {
    if (connection.receive(Op::check, 1, answer).number != proto::kReady) missing.push_back(key);
  }
  return missing;
}

std::vector<std::string> TcpStore::list_keys() { throw StoreError("list_keys is not served yet"); }
void TcpStore::queue_push(std::string_view, std::string_view) { throw StoreError("queues are not served yet"); }
std::string TcpStore::queue_pop(std::string_view, const Deadline&) { throw StoreError("queues are not served yet"); }
std::int64_t TcpStore::queue_length(std::string_view) { throw StoreError("queues are not served yet"); }
void TcpStore::barrier(std::string_view, std::int64_t, std::int64_t, const Deadline&) {
  throw StoreError("barriers are not served yet");
}

}  // namespace lockstep::store
