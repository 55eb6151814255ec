#include "runtime/store/tcp_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "runtime/base/environment.h"
#include "runtime/base/error.h"
#include "runtime/net/backoff.h"
#include "runtime/net/stream.h"
#include "runtime/store/key_barrier.h"
#include "runtime/store/messages.h"

namespace lockstep::store {
namespace {

using proto::Op;

// PyTorch's clients put this before each key of their users; see proto/PROTOCOL.md.
constexpr char kKeyPrefix = '/';
constexpr proto::Limits kLimits;

// For the server, in ms: 0 if the deadline has passed, less if there is none.
std::int64_t timeout_of(const Deadline& deadline) {
  if (deadline.is_never()) return -1;
  return std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()).count();
}

static_assert(kMaxKeyBytes + 1 == kLimits.max_key_bytes && kMaxValueBytes == kLimits.max_value_bytes);

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
    : server_(endpoint.address), options_(options), endpoint_(endpoint) {
  try {
    TcpConnection connection = TcpConnection::open(endpoint, deadline);
    endpoint_.address = connection.peer();
    dialect_ = connection.dialect();
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
  if (!proto::code_of(request.op, dialect_)) {
    throw StoreError(
        fmt::format("store ({}): {} is not an operation of this server, which speaks as {}; use a newer "
                    "PyTorch, or lockstep's own store",
                    description(), proto::shape_of(request.op).name, proto::name_of(dialect_)));
  }
  std::string bytes;
  proto::write_request(bytes, request, dialect_);
  if (bytes.size() > kLimits.max_message_bytes) {
    throw InvalidArgument(fmt::format("store: {} of {} keys has {} bytes; at most {} are possible: split it",
                                      proto::shape_of(request.op).name, request.contents.keys.size(), bytes.size(),
                                      kLimits.max_message_bytes));
  }
  return bytes;
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
  return TcpConnection::open_once(endpoint_, dialect_, deadline);
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

// Some operations wait; the answer to a wait may come this late.
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

Frame TcpStore::ask(const std::string& what, const proto::Request& request, const Deadline& answer) {
  const std::string bytes = bytes_of(request);
  Frame frame;
  with_connection(what, answer, [&](TcpConnection& connection) {
    connection.send(bytes, answer);
    const proto::Contents& reply = connection.receive(request.op, 0, answer);
    frame.status = static_cast<std::uint8_t>(reply.number);
    frame.list.assign(reply.values.begin(), reply.values.end());
  });
  const bool is_known =
      frame.status == proto::kOk || frame.status == proto::kMissing || frame.status == proto::kRefused;
  if (is_known) return frame;
  throw StoreError(fmt::format("store ({}): {}: an answer with status {}", description(), what, frame.status));
}

void TcpStore::throw_refused(const std::string& what, const Frame& frame) const {
  throw StoreError(fmt::format("store ({}): {}: refused: {}", description(), what,
                               frame.list.empty() ? "without a reason" : frame.list.front()));
}

void TcpStore::write(const std::string& what, Op own, Op torch, const proto::Contents& contents) {
  if (is_lockstep()) {
    const Frame frame = ask(what, {own, contents}, Deadline::after(options_.request_timeout));
    if (frame.status != proto::kOk) throw_refused(what, frame);
    return;
  }
  // PyTorch doesn't acknowledge a write. The answer to a question behind it proves that it has arrived.
  const Op proof = is_legacy() ? Op::num_keys : Op::ping;
  const std::string bytes = bytes_of({torch, contents}) + bytes_of({proof, {}});
  const Deadline deadline = Deadline::after(options_.request_timeout);
  with_connection(what, deadline, [&](TcpConnection& connection) {
    connection.send(bytes, deadline);
    connection.receive(proof, 0, deadline);
  });
}

void TcpStore::set(std::string_view key, std::string_view value) {
  const std::string name = wire_key(key);
  write(fmt::format("set '{}'", key), Op::set_acked, Op::set, {{name}, {checked_value(key, value)}, 0});
}

void TcpStore::append(std::string_view key, std::string_view value) {
  if (is_legacy()) return append_by_swaps(key, value);
  const std::string name = wire_key(key);
  write(fmt::format("append to '{}'", key), Op::append_acked, Op::append, {{name}, {checked_value(key, value)}, 0});
}

void TcpStore::append_by_swaps(std::string_view key, std::string_view value) {
  const std::string name(key);
  for (;;) {
    // Appending to an absent key stores the value.
    const std::string before = check(std::span(&name, 1)) ? get(key, Deadline::after(options_.request_timeout)) : "";
    const std::string after = before + std::string(value);
    if (value.empty() && !before.empty()) return;
    if (compare_set(key, before, after) == after) return;
  }
}

void TcpStore::multi_set(std::span<const std::string> keys, std::span<const std::string> values) {
  check_pairs(description(), keys.size(), values.size());
  if (keys.empty()) return;
  if (is_legacy()) {
    for (std::size_t i = 0; i < keys.size(); ++i) set(keys[i], values[i]);
    return;
  }
  const WireKeys names(*this, keys);
  proto::Contents contents{names.views, {}, 0};
  for (std::size_t i = 0; i < keys.size(); ++i) contents.values.push_back(checked_value(keys[i], values[i]));
  write(fmt::format("multi_set of {} keys", keys.size()), Op::multi_set_acked, Op::multi_set, contents);
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
  if (keys.empty()) return values;
  const std::string what = fmt::format("get {}", quoted_keys(keys));
  if (is_lockstep()) {
    const WireKeys names(*this, keys);
    const proto::Request request{Op::wait_get, {names.views, {}, timeout_of(deadline)}};
    Frame frame = ask(what, request, answer_deadline(deadline));
    if (frame.status == proto::kRefused) throw_refused(what, frame);
    if (frame.status == proto::kOk && frame.list.size() == keys.size()) return std::move(frame.list);
    for (std::string& key : frame.list) key.erase(0, 1);  // as it went over the wire
    throw_wait_timeout(description(), keys, frame.list, deadline);
  }
  wait_and(what, keys, deadline,
           [&](TcpConnection& connection, const WireKeys& names) { read_values(connection, names, values); });
  return values;
}

// Of keys that are there, so that the answer comes at once; a wait's own deadline may just have passed.
void TcpStore::read_values(TcpConnection& connection, const WireKeys& keys, std::vector<std::string>& values) {
  const Deadline answer = Deadline::after(options_.request_timeout);
  if (keys.views.size() > 1 && !is_legacy()) {
    connection.send(bytes_of({Op::multi_get, {keys.views, {}, 0}}), answer);
    const proto::Contents& reply = connection.receive(Op::multi_get, keys.views.size(), answer);
    values.assign(reply.values.begin(), reply.values.end());
    return;
  }
  for (const std::string_view key : keys.views) {
    connection.send(bytes_of({Op::get, {{key}, {}, 0}}), answer);
    values.emplace_back(connection.receive(Op::get, 1, answer).values.at(0));
  }
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
  if (is_legacy()) {
    // A wait of this time can't be cancelled: its answer would come between those of other requests. So another
    // connection takes the place of this one.
    connection = TcpConnection::open_once(endpoint_, dialect_, answer);
    return false;
  }
  connection.send(bytes_of({Op::cancel_wait, {}}), answer);
  if (connection.receive(Op::cancel_wait, 0, answer).number == proto::kWaitCanceled) return false;
  // The keys came just now: that was the reply to WAIT, and the one to CANCEL_WAIT is behind it.
  connection.receive(Op::cancel_wait, 0, answer);
  return true;
}

std::vector<std::string> TcpStore::missing_keys(TcpConnection& connection, const WireKeys& keys) {
  const Deadline answer = Deadline::after(options_.request_timeout);
  std::string bytes;
  for (const std::string_view key : keys.views) bytes += bytes_of({Op::check, {{key}, {}, 0}});
  connection.send(bytes, answer);
  std::vector<std::string> missing;
  for (const std::string& key : keys.plain) {
    if (connection.receive(Op::check, 1, answer).number != proto::kReady) missing.push_back(key);
  }
  return missing;
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

void TcpStore::queue_push(std::string_view queue, std::string_view value) {
  const std::string name = wire_key(queue);
  write(fmt::format("push to queue '{}'", queue), Op::queue_push_acked, Op::queue_push,
        {{name}, {checked_value(queue, value)}, 0});
}

std::string TcpStore::queue_pop(std::string_view queue, const Deadline& deadline) {
  if (!is_lockstep()) return pop_in_two_trips(queue, deadline);
  const std::string name = wire_key(queue);
  const std::string what = fmt::format("pop from queue '{}'", queue);
  Frame frame = ask(what, {Op::queue_wait_pop, {{name}, {}, timeout_of(deadline)}}, answer_deadline(deadline));
  if (frame.status == proto::kRefused) throw_refused(what, frame);
  if (frame.status == proto::kOk && frame.list.size() == 1) return std::move(frame.list.front());
  throw_queue_timeout(description(), queue, deadline);
}

std::string TcpStore::pop_in_two_trips(std::string_view queue, const Deadline& deadline) {
  const std::string key(queue);
  const std::string name = wire_key(queue);
  const std::string what = fmt::format("pop from queue '{}'", queue);
  const std::string pop = bytes_of({Op::queue_pop, {{name}, {}, 0}});
  std::optional<std::string> item;
  net::Backoff backoff;
  for (;;) {
    try {
      wait_and(what, std::span(&key, 1), deadline, [&](TcpConnection& connection, const WireKeys&) {
        const Deadline answer = Deadline::after(options_.request_timeout);
        connection.send(pop, answer);
        const proto::Contents& reply = connection.receive(Op::queue_pop, 1, answer);
        if (!reply.values.empty()) item.emplace(reply.values.front());
      });
    } catch (const Timeout&) {
      throw_queue_timeout(description(), queue, deadline);
    }
    if (item) return *std::move(item);
    // Somebody else was faster, or there is a key of the queue's name.
    if (!backoff.pause(deadline)) throw_queue_timeout(description(), queue, deadline);
  }
}

std::int64_t TcpStore::queue_length(std::string_view queue) {
  const std::string name = wire_key(queue);
  std::int64_t length = 0;
  exchange(fmt::format("length of queue '{}'", queue), {Op::queue_length, {{name}, {}, 0}},
           [&](const proto::Contents& reply) { length = reply.number; });
  return length;
}

void TcpStore::barrier(std::string_view name, std::int64_t rank, std::int64_t world_size, const Deadline& deadline) {
  check_rank(description(), name, rank, world_size);
  if (!is_lockstep()) return barrier_over_keys(*this, name, rank, world_size, deadline);
  const std::string key = wire_key(name);
  const std::string rank_text = std::to_string(rank);
  const std::string world_text = std::to_string(world_size);
  const std::string what = fmt::format("barrier '{}' of rank {}", name, rank);
  const proto::Request request{Op::rank_barrier, {{key}, {rank_text, world_text}, timeout_of(deadline)}};
  const Frame frame = ask(what, request, answer_deadline(deadline));
  if (frame.status == proto::kOk) return;
  if (frame.status == proto::kRefused) {  // The server has looked at what the caller said.
    throw InvalidArgument(fmt::format("store ({}): {}", description(), frame.list.empty() ? what : frame.list.front()));
  }
  std::vector<std::int64_t> missing;
  std::int64_t count = 0;
  for (const std::string& item : frame.list) {
    const auto number = parse_int(item.starts_with('+') ? std::string_view(item).substr(1) : item);
    if (!number) throw StoreError(fmt::format("store ({}): {}: '{}' is no rank", description(), what, item));
    count += item.starts_with('+') ? *number : 1;
    if (!item.starts_with('+')) missing.push_back(*number);
  }
  throw_barrier_timeout(description(), name, world_size, missing, count, deadline);
}

}  // namespace lockstep::store
