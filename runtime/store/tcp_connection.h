// One connection to a store server, greeted and ready for requests. Used by one thread at a time.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "proto/reply.h"
#include "proto/request.h"
#include "runtime/base/deadline.h"
#include "runtime/base/unique_fd.h"
#include "runtime/net/address.h"

namespace lockstep::store {

class TcpConnection {
 public:
  // Connects and greets, and tries again until the deadline, also when the server closes during the greeting: a full
  // listen queue shows only then. Timeout says what was tried and what came of it.
  static TcpConnection open(const net::HostPort& where, const Deadline& deadline);
  // The same without a second try, for a server that is known to be there.
  static TcpConnection open_once(const net::HostPort& where, const Deadline& deadline);

  // Sends bytes of requests. Throws net::ConnectionClosed, Timeout, SystemError.
  void send(std::string_view bytes, const Deadline& deadline);
  // Receives the reply to the oldest request that has none yet, which was `op` with `keys` keys. The views are valid
  // until the next call. Throws as send(), and CorruptData if the reply is not one.
  const proto::Contents& receive(proto::Op op, std::size_t keys, const Deadline& deadline);
  // The address that was connected to, numeric.
  net::HostPort peer() const;

 private:
  explicit TcpConnection(UniqueFd fd) : fd_(std::move(fd)) {}
  void greet(const Deadline& deadline);

  UniqueFd fd_;
  std::string input_;      // received, not yet given out, but for the first `given_`
  std::size_t given_ = 0;  // bytes of the reply that was returned last
  proto::Contents contents_;
};

}  // namespace lockstep::store
