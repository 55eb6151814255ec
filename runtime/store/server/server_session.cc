// SPDX-License-Identifier: Apache-2.0
#include "runtime/store/server/server_session.h"

#include <fmt/format.h>

#include <utility>

#include "lockstep/base/error.h"
#include "proto/push.h"
#include "proto/reply.h"

namespace lockstep::store {
namespace {

using proto::Dialect;
using proto::Op;

// The number of bytes of unread replies above which the session stops reading the client's requests.
constexpr std::size_t kUnreadOutput = std::size_t{1} << 20;
// The number of bytes of held requests above which the session stops reading the client's requests. A request is held
// if the session can't serve the request yet.
constexpr std::size_t kHeldInput = std::size_t{64} << 10;
// The size of the largest reply buffer that a session keeps in ServerState::spare_output for the next reply.
constexpr std::size_t kSpareOutput = std::size_t{256} << 10;

void give_back(std::string& buffer) { std::string().swap(buffer); }

// Returns the memory that a buffer takes. A small buffer may be ServerState::spare_output, which all sessions share, so
// memory_of() counts only the bytes that a small buffer contains.
std::size_t memory_of(const std::string& buffer) {
  return buffer.capacity() > kSpareOutput ? buffer.capacity() : buffer.size();
}

bool is_for_extension(std::string_view input) {
  return !input.empty() && static_cast<unsigned char>(input.front()) >= proto::kFirstExtensionCode;
}

}  // namespace

ServerState::ServerState(const TcpStoreServerOptions& its_options)
    : options(its_options),
      keys({.max_bytes = options.max_stored_bytes,
            .max_entries = options.max_keys,
            .max_value_bytes = options.limits.max_value_bytes,
            .max_waited_keys = options.max_waited_keys}),
      legacy(options.max_watched_keys),
      greeting_reader(proto::kGreetingLimits, Dialect::lockstep),
      current_reader(options.limits, Dialect::current),
      legacy_reader(options.limits, Dialect::legacy),
      lockstep_reader(options.limits, Dialect::lockstep) {}

ServerSession::ServerSession(ServerState& state, SessionHost& host, SessionId id)
    : state_(state), host_(host), id_(id) {}

ServerSession::~ServerSession() {
  forget_waits();
  state_.legacy.forget(id_);
  state_.held_bytes -= held_bytes_;
}

bool ServerSession::receive(std::string_view bytes) {
  if (phase_ == Phase::closed) return false;
  bool open = true;
  // Usually input_ is empty, and the session serves requests from the loop's buffer without a copy.
  if (input_.empty()) {
    open = serve(bytes);
    if (!bytes.empty()) input_.assign(bytes);
  } else {
    input_.append(bytes);
    std::string_view input = input_;
    open = serve(input);
    if (input.empty()) {
      give_back(input_);
    } else if (input.size() < input_.size()) {
      input_ = std::string(input);
    }
  }
  return open && account(input_.size());
}

bool ServerSession::wake() {
  if (phase_ == Phase::closed) return false;
  if (!waiting_) return true;
  try {
    answer_woken();
  } catch (const StoreError& error) {
    return close(error.what());
  }
  return receive({});
}

bool ServerSession::expire() {
  if (phase_ == Phase::refused) {
    reply_frame(Op::prove, proto::kRefused, {"wrong secret"});
    return close({});
  }
  if (!waiting_ || phase_ == Phase::closed) return phase_ != Phase::closed;
  waiting_->has_timer = false;
  answer_late();
  return receive({});
}

void ServerSession::push(const Frame& frame) {
  if (phase_ == Phase::closed) return;
  const std::vector<std::string_view> list(frame.list.begin(), frame.list.end());
  proto::write_push(writable_output(), proto::PushFormat::frame, {{}, list, frame.status});
  account(input_.size());
}

void ServerSession::push_watch_event(const proto::Contents& event) {
  if (phase_ == Phase::closed) return;
  proto::write_push(writable_output(), proto::PushFormat::watch_event, event);
  account(input_.size());
}

bool ServerSession::sent(std::size_t bytes) {
  sent_ += bytes;
  if (shared_) {
    if (sent_ == shared_->bytes().size()) {
      shared_.reset();
      sent_ = 0;
    }
  } else if (sent_ == output_.size()) {
    sent_ = 0;
    output_.clear();
    if (output_.capacity() > state_.spare_output.capacity() && output_.capacity() <= kSpareOutput) {
      state_.spare_output.swap(output_);
    }
    give_back(output_);
  } else if (sent_ > kUnreadOutput && sent_ > output_.size() / 2) {
    // Move the unsent output only after more than half of the buffer was sent. Moving the output after every send would
    // copy the output for a slow client many times.
    output_ = std::string(output());
    sent_ = 0;
  }
  return input_.empty() && phase_ != Phase::closed ? account(0) : receive({});
}

std::string& ServerSession::writable_output() {
  if (output_.empty() && output_.capacity() < state_.spare_output.capacity()) output_.swap(state_.spare_output);
  return output_;
}

bool ServerSession::wants_input() const {
  return phase_ != Phase::refused && phase_ != Phase::closed && (input_.size() < kHeldInput || !must_hold(input_));
}

// Returns true if the request at the head of `input` must not be served yet.
bool ServerSession::must_hold(std::string_view input) const {
  if (phase_ == Phase::refused || phase_ == Phase::closed) return true;
  if (unread() > kUnreadOutput && !(is_urgent_ && is_for_extension(input))) return true;
  if (!waiting_ || dialect_ == Dialect::legacy) return false;
  return !input.empty() && static_cast<unsigned char>(input.front()) != static_cast<int>(Op::cancel_wait);
}

bool ServerSession::close(std::string reason) {
  phase_ = Phase::closed;
  close_reason_ = std::move(reason);
  return false;
}

void ServerSession::shed(const std::string& reason) {
  if (phase_ != Phase::closed) close(reason);
  give_back(output_);
  shared_.reset();
  sent_ = 0;
  // Keep input_, because a caller of shed() may still use input_. The session's destructor frees input_.
  state_.held_bytes -= std::exchange(held_bytes_, 0);
}

std::size_t ServerSession::load() const {
  return held_bytes_ + (shared_ ? shared_->bytes().size() / static_cast<std::size_t>(shared_.use_count()) : 0);
}

bool ServerSession::account(std::size_t input_bytes) {
  if (phase_ == Phase::closed) return false;
  const std::size_t waits = waiting_ ? waiting_->bytes : 0;
  const std::size_t memory = memory_of(input_) + memory_of(output_) + waits;
  state_.held_bytes += memory - held_bytes_;
  held_bytes_ = memory;
  const std::size_t wanted = input_bytes + unread() + waits;
  if (wanted <= state_.options.max_client_bytes) return true;
  return close(
      fmt::format("the server holds {} bytes of its requests and of replies that it doesn't read; the limit "
                  "is {}",
                  wanted, state_.options.max_client_bytes));
}

proto::RequestReader& ServerSession::reader() {
  if (own_reader_) return *own_reader_;
  if (phase_ != Phase::serving) return state_.greeting_reader;
  switch (*dialect_) {
    case Dialect::current: return state_.current_reader;
    case Dialect::legacy: return state_.legacy_reader;
    case Dialect::lockstep: break;
  }
  return state_.lockstep_reader;
}

proto::RequestReader ServerSession::fresh_reader() const {
  return proto::RequestReader(phase_ == Phase::serving ? state_.options.limits : proto::kGreetingLimits, *dialect_);
}

// Finds the dialect that the client speaks. Returns false if the client is refused.
bool ServerSession::open(std::string_view input) {
  dialect_ = proto::detect_dialect(input);
  if (!dialect_) return true;
  if (dialect_ == Dialect::lockstep) {
    phase_ = Phase::greeting;
    greeting_ = std::make_unique<ServerGreeting>(state_.options.secret ? &*state_.options.secret : nullptr,
                                                 state_.options.run_id);
    return true;
  }
  const auto first = static_cast<unsigned char>(input.front());
  if (dialect_ == Dialect::legacy && !proto::op_from_code(first, Dialect::legacy)) {
    return close(fmt::format("its first byte is {:#04x}: it is not a client of a store", first));
  }
  if (state_.options.secret) return close("torch client refused: use --torch-store");
  phase_ = Phase::serving;
  return true;
}

// Serves the requests at the head of `input` and removes the served bytes from `input`.
bool ServerSession::serve(std::string_view& input) {
  if (phase_ == Phase::opening && !input.empty() && !open(input)) return false;
  if (phase_ == Phase::opening) return true;
  try {
    while (!input.empty() && !must_hold(input)) {
      if (waiting_ && dialect_ == Dialect::legacy) {
        return close(
            "it sent a request while its WAIT is open: it has timed out, and would take the answer to the "
            "WAIT for that of the request");
      }
      proto::RequestReader& now = reader();
      const proto::Status status = now.read(input);
      if (status != proto::Status::ok) {
        // Keep the reader of an incomplete request in this session, because other sessions use the shared reader.
        if (!own_reader_) own_reader_ = std::make_unique<proto::RequestReader>(std::exchange(now, fresh_reader()));
        return status == proto::Status::need_more || close(own_reader_->reason());
      }
      const std::size_t size = now.size();
      // Release own_reader_ after this request, because the next request may need another reader, in another phase of
      // the session.
      const std::unique_ptr<proto::RequestReader> kept = std::move(own_reader_);
      execute(now.request());
      input.remove_prefix(size);
      if (!account(input.size())) return false;
      if (phase_ == Phase::refused) input = {};  // the remaining input will not be served
    }
    return true;
  } catch (const StoreError& error) {
    return close(error.what());
  }
}

void ServerSession::answer(const ServerGreeting::Answer& answer) {
  using Next = ServerGreeting::Next;
  const std::vector<std::string_view> list(answer.frame.list.begin(), answer.frame.list.end());
  const Op op = phase_ == Phase::greeting ? Op::hello : Op::prove;
  switch (answer.next) {
    case Next::prove: phase_ = Phase::proving; break;
    case Next::serve:
      phase_ = Phase::serving;
      role_ = greeting_->role();
      run_id_ = greeting_->run_id();
      greeting_.reset();
      break;
    case Next::close: close(answer.log); break;
    case Next::close_slowly:
      phase_ = Phase::refused;
      host_.complain(id_, answer.log);
      host_.start_timer(id_, state_.options.refusal_delay);
      return;
  }
  reply_frame(op, answer.frame.status, list);
}

}  // namespace lockstep::store
