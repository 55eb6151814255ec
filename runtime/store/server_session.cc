#include "runtime/store/server_session.h"

#include <fmt/format.h>

#include "proto/reply.h"
#include "runtime/base/error.h"

namespace lockstep::store {
namespace {

using proto::Op;

// Replies beyond this that the client has not read stop the reading of its requests.
constexpr std::size_t kUnreadOutput = std::size_t{1} << 20;
// Requests beyond this that can't be served yet stop the reading of more.
constexpr std::size_t kHeldInput = std::size_t{64} << 10;

// Buffers that have held something large are given back once they are empty: most connections are idle most of the
// time.
void clear(std::string& buffer) {
  if (buffer.capacity() > kHeldInput) {
    std::string().swap(buffer);
  } else {
    buffer.clear();
  }
}

}  // namespace

ServerSession::ServerSession(KeyTable& table, KeyTable::WaiterId id, const proto::Limits& limits)
    : table_(table), id_(id), limits_(limits), reader_(limits) {}

ServerSession::~ServerSession() { table_.cancel(id_); }

bool ServerSession::receive(std::string_view bytes) {
  if (input_.empty()) {
    const bool open = serve(bytes);
    input_.assign(bytes);
    return open;
  }
  input_.append(bytes);
  std::string_view input = input_;
  const bool open = serve(input);
  if (input.empty()) {
    clear(input_);
  } else {
    input_.erase(0, input_.size() - input.size());
  }
  return open;
}

bool ServerSession::wake() {
  if (waiting_) {
    waiting_ = false;
    reply_number(Op::wait, proto::kStopWaiting);
  }
  return receive({});
}

bool ServerSession::sent(std::size_t bytes) {
  sent_ += bytes;
  if (sent_ == output_.size()) {
    clear(output_);
    sent_ = 0;
  } else if (sent_ > kUnreadOutput) {
    output_.erase(0, sent_);
    sent_ = 0;
  }
  return input_.empty() || receive({});
}

bool ServerSession::wants_input() const { return input_.size() < kHeldInput || !must_hold(input_); }

// True if the request at the head of `input` must not be served yet.
bool ServerSession::must_hold(std::string_view input) const {
  if (output().size() > kUnreadOutput) return true;
  return waiting_ && !input.empty() && static_cast<unsigned char>(input.front()) != static_cast<int>(Op::cancel_wait);
}

// Serves the requests at the head of `input` and removes them from it.
bool ServerSession::serve(std::string_view& input) {
  try {
    while (!input.empty() && !must_hold(input)) {
      const proto::Status status = reader_.read(input);
      if (status == proto::Status::need_more) return true;
      if (status == proto::Status::malformed) {
        close_reason_ = reader_.reason();
        return false;
      }
      execute(reader_.request());
      input.remove_prefix(reader_.size());
    }
    return true;
  } catch (const StoreError& error) {
    close_reason_ = error.what();
    return false;
  }
}

void ServerSession::greet(const proto::Request& request) {
  if (request.op != Op::validate) {
    throw StoreError(
        fmt::format("the first request is {}, VALIDATE is wanted; the client is not one of lockstep or of "
                    "PyTorch 2.2 and later",
                    proto::shape_of(request.op).name));
  }
  if (request.contents.number != proto::kMagic) {
    throw StoreError(fmt::format("VALIDATE with magic {:#x}, {:#x} is wanted; the client does not speak this protocol",
                                 request.contents.number, proto::kMagic));
  }
  phase_ = Phase::serving;
}

void ServerSession::execute(const proto::Request& request) {
  if (phase_ == Phase::greeting) return greet(request);
  const Op op = request.op;
  const auto& keys = request.contents.keys;
  const auto& values = request.contents.values;
  const std::int64_t number = request.contents.number;
  switch (op) {
    case Op::validate: return greet(request);
    case Op::set: return table_.set(keys[0], values[0]);
    case Op::append: return table_.append(keys[0], values[0]);
    case Op::multi_set:
      for (std::size_t i = 0; i < keys.size(); ++i) table_.set(keys[i], values[i]);
      return;
    case Op::compare_set: {
      const std::string stored = table_.compare_set(keys[0], values[0], values[1]);
      return reply(op, {{}, {stored}, 0});
    }
    case Op::get:
    case Op::multi_get: return reply_values(op, keys);
    case Op::add: return reply_number(op, table_.add(keys[0], number));
    case Op::check: {
      for (const std::string_view key : keys) {
        if (table_.find(key) == nullptr) return reply_number(op, proto::kNotReady);
      }
      return reply_number(op, proto::kReady);
    }
    case Op::wait:
      waiting_ = !table_.wait(id_, keys);
      if (!waiting_) reply_number(op, proto::kStopWaiting);
      return;
    case Op::cancel_wait:
      table_.cancel(id_);
      waiting_ = false;
      return reply_number(op, proto::kWaitCanceled);
    case Op::num_keys: return reply_number(op, static_cast<std::int64_t>(table_.size()));
    case Op::delete_key: return reply_number(op, table_.erase(keys[0]) ? 1 : 0);
    case Op::ping: return reply_number(op, number);
    default: throw StoreError(fmt::format("{} is not served here", proto::shape_of(op).name));
  }
}

void ServerSession::reply(Op op, const proto::Contents& contents) { proto::write_reply(output_, op, contents); }

void ServerSession::reply_number(Op op, std::int64_t number) { reply(op, {{}, {}, number}); }

void ServerSession::reply_values(Op op, const std::vector<std::string_view>& keys) {
  proto::Contents contents;
  contents.values.reserve(keys.size());
  std::size_t bytes = 0;
  for (const std::string_view key : keys) {
    const std::string* value = table_.find(key);
    contents.values.push_back(value != nullptr ? std::string_view(*value) : std::string_view());
    bytes += contents.values.back().size();
  }
  if (bytes > limits_.max_message_bytes) {
    throw StoreError(fmt::format("{} of {} keys: the reply would have {} bytes, the limit is {}",
                                 proto::shape_of(op).name, keys.size(), bytes, limits_.max_message_bytes));
  }
  reply(op, contents);
}

}  // namespace lockstep::store
