// The operations of TcpStore that wait: in one trip at lockstep's server, in several at one of PyTorch.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "runtime/base/environment.h"
#include "runtime/base/error.h"
#include "runtime/net/backoff.h"
#include "runtime/store/key_barrier.h"
#include "runtime/store/messages.h"
#include "runtime/store/tcp_store.h"
#include "runtime/store/wire_keys.h"

namespace lockstep::store {
namespace {

using proto::Op;

// For the server, in ms: 0 if the deadline has passed, less if there is none.
std::int64_t timeout_of(const Deadline& deadline) {
  if (deadline.is_never()) return -1;
  return std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()).count();
}

}  // namespace

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
    const WireKeys names(description(), keys);
    const proto::Request request{Op::wait_get, {names.views, {}, timeout_of(deadline)}};
    Frame frame = ask_and_wait(what, request, deadline);
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
  const WireKeys names(description(), keys);
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

// True if the keys came, false if the deadline did, or stop_waiting(), and the wait is cancelled.
bool TcpStore::wait_reply(TcpConnection& connection, const Deadline& deadline) {
  try {
    if (connection.await_reply(deadline)) {
      connection.receive(Op::wait, 0, deadline);
      return true;
    }
  } catch (const Timeout&) {
  }
  const Deadline answer = Deadline::after(options_.cancel_timeout);
  if (is_legacy()) {
    // A wait of this time can't be cancelled: its answer would come between those of other requests. So another
    // connection takes the place of this one.
    connection = TcpConnection::open_once(endpoint_, dialect_, answer, stop());
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

std::string TcpStore::queue_pop(std::string_view queue, const Deadline& deadline) {
  if (!is_lockstep()) return pop_in_two_trips(queue, deadline);
  const std::string name = wire_key(description(), queue);
  const std::string what = fmt::format("pop from queue '{}'", queue);
  Frame frame = ask_and_wait(what, {Op::queue_wait_pop, {{name}, {}, timeout_of(deadline)}}, deadline);
  if (frame.status == proto::kRefused) throw_refused(what, frame);
  if (frame.status == proto::kOk && frame.list.size() == 1) return std::move(frame.list.front());
  throw_queue_timeout(description(), queue, deadline);
}

std::string TcpStore::pop_in_two_trips(std::string_view queue, const Deadline& deadline) {
  const std::string key(queue);
  const std::string name = wire_key(description(), queue);
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

void TcpStore::barrier(std::string_view name, std::int64_t rank, std::int64_t world_size, const Deadline& deadline) {
  check_rank(description(), name, rank, world_size);
  if (!is_lockstep()) return barrier_over_keys(*this, name, rank, world_size, deadline);
  const std::string key = wire_key(description(), name);
  const std::string rank_text = std::to_string(rank);
  const std::string world_text = std::to_string(world_size);
  const std::string what = fmt::format("barrier '{}' of rank {}", name, rank);
  const proto::Request request{Op::rank_barrier, {{key}, {rank_text, world_text}, timeout_of(deadline)}};
  const Frame frame = ask_and_wait(what, request, deadline);
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
