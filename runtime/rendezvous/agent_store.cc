#include "runtime/rendezvous/agent_store.h"

#include <fmt/format.h>

#include <chrono>

#include "runtime/base/error.h"
#include "runtime/net/backoff.h"
#include "runtime/net/stream.h"
#include "runtime/net/tcp_socket.h"

namespace lockstep::rendezvous {
namespace {

using proto::Dialect;
using proto::Op;

constexpr std::size_t kReadBytes = 4096;
// A server that is there answers a greeting at once.
constexpr std::chrono::seconds kGreeting{3};
// To a server of the 1.13 era the greeting says "set", and these bytes are the high ones of a length that it can't even
// try to allocate: it closes the connection. With small ones it would try.
constexpr std::int64_t kNonce = 0x7fffffff;
std::string wire_key(std::string_view key) { return fmt::format("/{}", key); }

}  // namespace

AgentStore::AgentStore(net::HostPort address, const Deadline& deadline) : address_(std::move(address)) {
  for (net::Backoff backoff;;) {
    std::string reasons;
    for (const Dialect dialect : {Dialect::current, Dialect::legacy}) {
      std::string reason;
      fd_ = try_open(dialect, deadline, reason);
      if (fd_) {
        dialect_ = dialect;
        local_ = net::local_address(fd_.get());
        return;
      }
      reasons += fmt::format("{}as to {}: {}", reasons.empty() ? "" : "; ", name_of(dialect), reason);
    }
    if (!backoff.pause(deadline)) {
      throw Timeout(fmt::format("the store of torchrun's agent at {} answers no client of PyTorch's, {}: {}",
                                address_.to_string(), deadline.progress(), reasons));
    }
  }
}

UniqueFd AgentStore::try_open(Dialect dialect, const Deadline& deadline, std::string& reason) const {
  UniqueFd fd = net::tcp_connect(address_, deadline);
  const Deadline greeting = deadline.sooner(kGreeting);
  input_.clear();
  try {
    if (dialect == Dialect::legacy) {
      // One byte, which a server of today that did not answer in time takes for the beginning of a "wait".
      exchange(fd.get(), dialect, {Op::num_keys, {}}, greeting);
      return fd;
    }
    std::string bytes;
    proto::write_request(bytes, {Op::validate, {{}, {}, proto::kMagic}}, dialect);
    net::send_all(fd.get(), bytes, greeting);
    if (exchange(fd.get(), dialect, {Op::ping, {{}, {}, kNonce}}, greeting).number == kNonce) return fd;
    reason = "it answered the greeting with another number";
  } catch (const Timeout& error) {
    reason = error.what();
  } catch (const net::ConnectionClosed& error) {
    reason = error.what();
  } catch (const SystemError& error) {
    reason = error.what();
  } catch (const CorruptData& error) {
    reason = error.what();
  }
  return {};
}

proto::Contents AgentStore::exchange(int fd, Dialect dialect, const proto::Request& request,
                                     const Deadline& deadline) const {
  std::string bytes;
  proto::write_request(bytes, request, dialect);
  net::send_all(fd, bytes, deadline);
  if (proto::shape_of(request.op).reply.empty()) return {};
  proto::ReplyReader reader(request.op, request.contents.keys.size());
  for (input_.clear();;) {
    const proto::Status status = reader.read(input_);
    if (status == proto::Status::ok) return reader.contents();
    if (status == proto::Status::malformed) throw CorruptData(reader.reason());
    const std::size_t had = input_.size();
    input_.resize(had + kReadBytes);
    const auto room = std::as_writable_bytes(std::span(input_)).subspan(had);
    input_.resize(had + net::recv_some(fd, room, deadline));
  }
}

proto::Contents AgentStore::exchange(const proto::Request& request, const Deadline& deadline) {
  const auto lost = [&](const Error& error) {
    return StoreError(
        fmt::format("the store of torchrun's agent at {}: {}: {}; the agent has ended or refused this: "
                    "look at what it said",
                    address_.to_string(), proto::shape_of(request.op).name, error.what()));
  };
  UniqueFd fd = std::move(fd_);
  try {
    if (!fd) {
      std::string reason;
      fd = try_open(dialect_, deadline, reason);
      if (!fd) throw net::ConnectionClosed(reason);
    }
    proto::Contents reply = exchange(fd.get(), dialect_, request, deadline);
    fd_ = std::move(fd);
    return reply;
  } catch (const net::ConnectionClosed& error) {
    throw lost(error);
  } catch (const SystemError& error) {
    throw lost(error);
  } catch (const CorruptData& error) {
    throw lost(error);
  }
}

void AgentStore::set(std::string_view key, std::string_view value, const Deadline& deadline) {
  const std::string name = wire_key(key);
  exchange({Op::set, {{name}, {value}, 0}}, deadline);
  // A write is not answered: what is asked behind it on the same connection shows that it has arrived.
  if (exchange({Op::check, {{name}, {}, 0}}, deadline).number != proto::kReady) {
    throw StoreError(
        fmt::format("the store of torchrun's agent at {} does not have what was set at '{}'; the agent may "
                    "have ended",
                    address_.to_string(), key));
  }
}

std::string AgentStore::get(std::string_view key, const Deadline& deadline) {
  const std::string name = wire_key(key);
  exchange({Op::wait, {{name}, {}, 0}}, deadline);
  return std::string(exchange({Op::get, {{name}, {}, 0}}, deadline).values.at(0));
}

void AgentStore::erase(std::string_view key, const Deadline& deadline) {
  const std::string name = wire_key(key);
  exchange({Op::delete_key, {{name}, {}, 0}}, deadline);
}

}  // namespace lockstep::rendezvous
