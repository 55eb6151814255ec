// SPDX-License-Identifier: Apache-2.0
#include "runtime/store/client/torch_store_client.h"

#include <fmt/format.h>
#include <unistd.h>

#include <iterator>

#include "lockstep/base/error.h"
#include "runtime/store/client/wire_keys.h"
#include "runtime/store/messages.h"

namespace lockstep::store {
namespace {

using proto::Dialect;
using proto::Op;

// The longest time for an answer of torchrun's agent. The agent is already running when this client connects, and may
// end together with rank 0.
constexpr auto kAnswerLimit = std::chrono::seconds(5);
// The longest times for one greeting. A current server answers at once. A busy server may never answer the legacy
// greeting, so kLegacyLimit is short.
constexpr auto kCurrentLimit = std::chrono::seconds(10);
constexpr auto kLegacyLimit = std::chrono::seconds(2);

// Returns the number for a PING request; a server that speaks the current dialect sends the number back. A server of
// PyTorch 1.13 reads VALIDATE as SET, and reads the magic number and three bytes of the PING as the length of a key.
// The byte 0xff makes the length of the key exceed the limit of the server of 1.13, so that server closes the
// connection instead of waiting.
std::int64_t ping_nonce() { return (::getpid() & 0xffff) | 0xff0000; }

}  // namespace

TorchStoreClient::TorchStoreClient(const net::HostPort& server, const Deadline& deadline) : server_(server) {
  try {
    connect(deadline, Expect::may_come);
  } catch (const Timeout& error) {
    throw Timeout(fmt::format("store ({}): {}", description(), error.what()));
  } catch (const Error& error) {
    throw StoreError(fmt::format("store ({}): {}", description(), error.what()));
  }
}

std::string TorchStoreClient::description() const { return fmt::format("torch {}", server_.to_string()); }

std::string TorchStoreClient::bytes_of(const proto::Request& request) const {
  std::string bytes;
  proto::write_request(bytes, request, dialect_);
  return bytes;
}

// A server of PyTorch 1.13 closes the connection when a client greets in the current dialect, so every second attempt
// uses the legacy dialect.
void TorchStoreClient::connect(const Deadline& deadline, Expect expect) {
  const auto try_greeting = [&](TcpConnection& connection, int attempt) {
    dialect_ = attempt % 2 == 1 ? Dialect::current : Dialect::legacy;
    greet(connection, deadline.sooner(dialect_ == Dialect::legacy ? kLegacyLimit : kCurrentLimit));
  };
  connection_ = TcpConnection::open_with(server_, deadline, expect, try_greeting, ", or a store with a secret");
}

void TorchStoreClient::greet(TcpConnection& connection, const Deadline& deadline) const {
  if (dialect_ == Dialect::legacy) {  // The legacy dialect has no greeting: any question works.
    connection.send(bytes_of({Op::num_keys, {}}), deadline);
    connection.receive(Op::num_keys, 0, deadline);
    return;
  }
  const std::int64_t nonce = ping_nonce();
  connection.send(bytes_of({Op::validate, {{}, {}, proto::kMagic}}) + bytes_of({Op::ping, {{}, {}, nonce}}), deadline);
  const std::int64_t answer = connection.receive(Op::ping, 0, deadline).number;
  if (answer != nonce) {
    throw StoreError(
        fmt::format("the process at {} answered the greeting with {:#x}, and {:#x} was wanted: it is not a store "
                    "server; see which program listens at this address",
                    server_.to_string(), answer, nonce));
  }
}

void TorchStoreClient::exchange(const std::string& what,
                                const std::function<void(TcpConnection&, const Deadline&)>& body) {
  const Deadline deadline = Deadline::after(kAnswerLimit);
  try {
    if (!connection_) connect(deadline, Expect::is_there);
    body(*connection_, deadline);
  } catch (const Error& error) {
    connection_.reset();
    throw StoreError(
        fmt::format("store ({}): {}: {}; torchrun's agent, which hosts the store, has ended or closed the connection: "
                    "look at the agent's output",
                    description(), what, error.what()));
  }
}

std::int64_t TorchStoreClient::ask(const std::string& what, std::initializer_list<proto::Request> requests) {
  std::int64_t number = 0;
  exchange(what, [&](TcpConnection& connection, const Deadline& deadline) {
    const proto::Request& last = *std::prev(requests.end());
    std::string bytes;
    for (const proto::Request& request : requests) bytes += bytes_of(request);
    connection.send(bytes, deadline);
    number = connection.receive(last.op, last.contents.keys.size(), deadline).number;
  });
  return number;
}

void TorchStoreClient::set(std::string_view key, std::string_view value) {
  const std::string name = wire_key(description(), key);
  // PyTorch's server doesn't acknowledge a write. The server's answer to a second request after the write proves that
  // the write has arrived.
  const Op proof = dialect_ == Dialect::legacy ? Op::num_keys : Op::ping;
  ask(fmt::format("set '{}'", key), {{Op::set, {{name}, {value}, 0}}, {proof, {}}});
}

std::string TorchStoreClient::get(std::string_view key, const Deadline& deadline) {
  const std::string name = wire_key(description(), key);
  std::optional<std::string> value;
  exchange(fmt::format("get '{}'", key), [&](TcpConnection& connection, const Deadline& answer) {
    connection.send(bytes_of({Op::wait, {{name}, {}, 0}}), answer);
    try {
      connection.await_reply(deadline);
    } catch (const Timeout&) {
      return;
    }
    const Deadline late = Deadline::after(kAnswerLimit);  // `answer` has passed if the wait was long
    connection.receive(Op::wait, 0, late);
    connection.send(bytes_of({Op::get, {{name}, {}, 0}}), late);
    value.emplace(connection.receive(Op::get, 1, late).values.at(0));
  });
  if (value) return *std::move(value);
  connection_.reset();  // the answer to the wait may still arrive
  const std::string plain(key);
  throw_wait_timeout(description(), std::span(&plain, 1), std::span(&plain, 1), deadline);
}

void TorchStoreClient::erase(std::string_view key) {
  const std::string name = wire_key(description(), key);
  ask(fmt::format("erase '{}'", key), {{Op::delete_key, {{name}, {}, 0}}});
}

std::int64_t TorchStoreClient::num_keys() { return ask("num_keys", {{Op::num_keys, {}}}); }

}  // namespace lockstep::store
