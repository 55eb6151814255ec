// SPDX-License-Identifier: Apache-2.0
// This file has the functions of ServerSession that serve the operations of parsed requests.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "lockstep/base/error.h"
#include "proto/reply.h"
#include "runtime/store/server/server_session.h"

namespace lockstep::store {
namespace {

using proto::Op;
using Await = KeyTable::Await;

// The smallest size in bytes of a reply whose memory is shared by clients that ask for the same keys.
constexpr std::size_t kShared = std::size_t{64} << 10;
// The largest number of keys in a reply whose memory is shared by several clients.
constexpr std::size_t kSharedKeys = 64;

std::size_t bytes_of(const std::vector<std::string_view>& keys) {
  constexpr std::size_t kOverhead = 64;  // the approximate overhead of a key in a list
  std::size_t bytes = 0;
  for (const std::string_view key : keys) bytes += key.size() + kOverhead;
  return bytes;
}

}  // namespace

void ServerSession::execute(const proto::Request& request) {
  const Op op = request.op;
  const auto& keys = request.contents.keys;
  const auto& values = request.contents.values;
  const std::int64_t number = request.contents.number;
  if (phase_ != Phase::serving && op != Op::hello && op != Op::prove) {
    throw StoreError(fmt::format("{} before it has {}", proto::shape_of(op).name,
                                 phase_ == Phase::proving ? "proved that it knows the secret" : "said hello"));
  }
  // If a queue item woke the client, the client may take the item with the request that is executed now. If the client
  // has not taken the item, release_promise() lets the item wake another client.
  const bool had_promise = std::exchange(has_promise_, false);
  switch (op) {
    case Op::validate:
      if (number == proto::kMagic) break;
      throw StoreError(
          fmt::format("the client sent VALIDATE with the number {:#x}, but a client of a store sends {:#x}; see which "
                      "program connects to this port",
                      number, proto::kMagic));
    case Op::set: state_.keys.set(keys[0], values[0]); break;
    case Op::append: state_.keys.append(keys[0], values[0]); break;
    case Op::multi_set:
      for (std::size_t i = 0; i < keys.size(); ++i) state_.keys.set(keys[i], values[i]);
      break;
    case Op::compare_set: {
      const std::string stored = state_.keys.compare_set(keys[0], values[0], values[1]);
      reply(op, {{}, {stored}, 0});
      break;
    }
    case Op::get:
    case Op::multi_get: reply_values(op, keys); break;
    case Op::add: reply_number(op, state_.keys.add(keys[0], number)); break;
    case Op::check: {
      const bool ready = std::all_of(
          keys.begin(), keys.end(), [&](std::string_view key) { return state_.keys.exists(key, Await::key_or_queue); });
      reply_number(op, ready ? proto::kReady : proto::kNotReady);
      break;
    }
    case Op::wait: wait(request); break;
    case Op::cancel_wait: cancel_wait(); break;
    case Op::num_keys: reply_number(op, static_cast<std::int64_t>(state_.keys.size())); break;
    case Op::delete_key: reply_number(op, state_.keys.erase(keys[0]) ? 1 : 0); break;
    case Op::ping: reply_number(op, number); break;
    case Op::queue_push: state_.keys.queue_push(keys[0], values[0]); break;
    case Op::queue_pop: {
      const std::size_t length = state_.keys.queue_length(keys[0]);
      const auto item = state_.keys.queue_pop(keys[0]);
      proto::Contents contents{{}, {}, static_cast<std::int64_t>(length)};
      if (item) contents.values.push_back(*item);
      reply(op, contents);
      break;
    }
    case Op::queue_length: reply_number(op, static_cast<std::int64_t>(state_.keys.queue_length(keys[0]))); break;
    case Op::list_keys: reply_keys(); break;
    case Op::barrier: barrier(request); break;
    case Op::watch_key:
      state_.legacy.watch(id_, keys[0]);
      reply_number(op, proto::kWatchRegistered);
      break;
    case Op::hello:
    case Op::prove: {
      const bool is_expected = phase_ == (op == Op::hello ? Phase::greeting : Phase::proving);
      if (!is_expected) throw StoreError(fmt::format("{} out of its turn", proto::shape_of(op).name));
      answer(op == Op::hello ? greeting_->hello(request.contents) : greeting_->prove(values[0]));
      break;
    }
    default: execute_own(request);
  }
  if (had_promise) state_.keys.release_promise(id_);
  is_greeted_ = phase_ == Phase::serving;
}

// Serves an operation of lockstep's dialect. If the operation throws StoreError, the answer has the status kRefused and
// the error's message.
void ServerSession::execute_own(const proto::Request& request) {
  const Op op = request.op;
  const auto& keys = request.contents.keys;
  const auto& values = request.contents.values;
  try {
    switch (op) {
      case Op::wait_get: return wait_get(request);
      case Op::set_acked: state_.keys.set(keys[0], values[0]); break;
      default: {
        const ServerExtension::Answer answer = host_.serve_extension(id_, request);
        is_urgent_ = answer.is_urgent;
        if (answer.is_later) return;
        return reply_frame(op, answer.frame.status, {answer.frame.list.begin(), answer.frame.list.end()});
      }
    }
    reply_frame(op, proto::kOk);
  } catch (const StoreError& error) {
    reply_frame(op, proto::kRefused, {error.what()});
  }
}

void ServerSession::wait(const proto::Request& request) {
  const auto& keys = request.contents.keys;
  if (state_.keys.wait(id_, keys, Await::key_or_queue)) {
    has_promise_ = true;
    return reply_number(Op::wait, proto::kStopWaiting);
  }
  start_waiting({.op = Op::wait, .bytes = bytes_of(keys)}, std::nullopt);
}

void ServerSession::wait_get(const proto::Request& request) {
  const auto& keys = request.contents.keys;
  if (answer_wait_get(keys)) return;
  state_.keys.wait(id_, keys, Await::key);
  start_waiting({.op = Op::wait_get, .keys = {keys.begin(), keys.end()}, .bytes = 2 * bytes_of(keys)},
                request.contents.number);
}

// Answers if all keys exist. Returns false if a key is missing.
bool ServerSession::answer_wait_get(const std::vector<std::string_view>& keys) {
  const bool complete =
      std::all_of(keys.begin(), keys.end(), [&](std::string_view key) { return state_.keys.find(key) != nullptr; });
  if (complete) reply_values(Op::wait_get, keys);
  return complete;
}

void ServerSession::barrier(const proto::Request& request) {
  const auto arrival = state_.barriers.arrive(id_, request.contents.keys[0], request.contents.number);
  if (!arrival.refusal.empty()) throw StoreError(arrival.refusal);
  if (arrival.complete) return reply_number(Op::barrier, proto::kStopWaiting);
  start_waiting({.op = Op::barrier, .bytes = bytes_of(request.contents.keys)}, std::nullopt);
}

void ServerSession::start_waiting(Waiting waiting, std::optional<std::int64_t> timeout_ms) {
  waiting_ = std::make_unique<Waiting>(std::move(waiting));
  if (!timeout_ms || *timeout_ms < 0) return;
  if (*timeout_ms == 0) return answer_late();
  waiting_->has_timer = true;
  constexpr std::int64_t kLongest = std::chrono::milliseconds(std::chrono::hours(24 * 365 * 100)).count();
  host_.start_timer(id_, std::chrono::milliseconds(std::min(*timeout_ms, kLongest)));
}

void ServerSession::stop_waiting() {
  if (waiting_ && waiting_->has_timer) host_.stop_timer(id_);
  waiting_.reset();
}

void ServerSession::forget_waits() {
  state_.keys.cancel(id_);
  state_.barriers.leave(id_);
}

// Answers a woken client. If another client has deleted an awaited key, the woken client continues to wait.
void ServerSession::answer_woken() {
  const Op op = waiting_->op;
  try {
    if (!answer_if_there(op)) return;
  } catch (const StoreError& error) {  // here only lockstep's own operations throw StoreError
    reply_frame(op, proto::kRefused, {error.what()});
  }
  stop_waiting();
}

// Answers the request if all awaited keys exist. Returns false if a key is missing and the client continues to wait.
bool ServerSession::answer_if_there(Op op) {
  switch (op) {
    case Op::wait:
      has_promise_ = true;
      reply_number(Op::wait, proto::kStopWaiting);
      break;
    case Op::barrier: reply_number(Op::barrier, proto::kStopWaiting); break;
    case Op::wait_get: {
      const std::vector<std::string_view> keys(waiting_->keys.begin(), waiting_->keys.end());
      if (answer_wait_get(keys)) break;
      state_.keys.wait(id_, keys, Await::key);
      return false;
    }
    default: break;
  }
  return true;
}

// Answers a WAIT_GET whose time is over.
void ServerSession::answer_late() {
  // Call missing() before forget_waits(), because missing() reads the wait that forget_waits() ends. Call
  // stop_waiting() last, because stop_waiting() resets waiting_.
  reply_frame(waiting_->op, proto::kMissing, state_.keys.missing(id_));
  forget_waits();
  stop_waiting();
}

void ServerSession::cancel_wait() {
  forget_waits();
  stop_waiting();
  reply_number(Op::cancel_wait, proto::kWaitCanceled);
}

void ServerSession::reply(Op op, const proto::Contents& contents) {
  proto::write_reply(writable_output(), op, contents);
}

void ServerSession::reply_number(Op op, std::int64_t number) { reply(op, {{}, {}, number}); }

void ServerSession::reply_frame(Op op, std::uint8_t status, std::vector<std::string_view> list) {
  reply(op, {{}, std::move(list), status});
}

std::vector<std::string_view> ServerSession::values_of(Op op, const std::vector<std::string_view>& keys) const {
  std::vector<std::string_view> values;
  values.reserve(keys.size());
  std::size_t bytes = 0;
  for (const std::string_view key : keys) {
    const std::string* value = state_.keys.find(key);
    values.push_back(value != nullptr ? std::string_view(*value) : std::string_view());
    bytes += values.back().size() + sizeof(std::uint64_t);
  }
  if (bytes > state_.options.limits.max_message_bytes) {
    throw StoreError(
        fmt::format("{} of {} keys: the reply would have {} bytes, and the limit is {}; ask for fewer keys",
                    proto::shape_of(op).name, keys.size(), bytes, state_.options.limits.max_message_bytes));
  }
  return values;
}

void ServerSession::reply_values(Op op, const std::vector<std::string_view>& keys) {
  const proto::Contents contents{{}, values_of(op, keys), proto::kOk};
  std::size_t bytes = 0;
  for (const std::string_view value : contents.values) bytes += value.size();
  if (bytes < kShared || keys.size() > kSharedKeys || unread() > 0) return reply(op, contents);
  ServerState::LargeReply& last = state_.last_large_reply;
  const bool is_same = last.op == op && last.version == state_.keys.version() && std::ranges::equal(last.keys, keys);
  shared_ = is_same ? last.reply.lock() : nullptr;
  if (shared_) return;
  std::string text;
  proto::write_reply(text, op, contents);
  shared_ = std::make_shared<const SharedReply>(state_.held_bytes, std::move(text));
  last = {op, {keys.begin(), keys.end()}, state_.keys.version(), shared_};
}

void ServerSession::reply_keys() {
  proto::Contents contents;
  contents.keys = state_.keys.keys();
  contents.number = static_cast<std::int64_t>(contents.keys.size());
  const std::size_t bytes = bytes_of(contents.keys);
  if (bytes > state_.options.limits.max_message_bytes) {
    throw StoreError(fmt::format(
        "LIST_KEYS of {} keys: the reply would have about {} bytes, and the limit is {}; erase keys that nobody needs",
        contents.keys.size(), bytes, state_.options.limits.max_message_bytes));
  }
  reply(Op::list_keys, contents);
}

}  // namespace lockstep::store
