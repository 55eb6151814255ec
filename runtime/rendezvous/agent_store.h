// The store of a torchrun agent: PyTorch's server, of today or of the 1.13 era, whose operations have other numbers.
//
// The little that rendezvous needs of it; for a store of lockstep's there is store/tcp_store.h. One thread at a time.
#pragma once

#include <string>
#include <string_view>

#include "proto/reply.h"
#include "proto/request.h"
#include "runtime/base/deadline.h"
#include "runtime/base/unique_fd.h"
#include "runtime/net/address.h"

namespace lockstep::rendezvous {

class AgentStore {
 public:
  // Connects, and finds out which era the server is of: it answers the greeting of a client of today, or else, on
  // another connection, a question in the numbers of 1.13. Tries again until the deadline. Timeout says what came of
  // it.
  AgentStore(net::HostPort address, const Deadline& deadline);

  // Keys are as PyTorch's users write them. All throw StoreError if the server goes or answers nonsense, and Timeout.
  void set(std::string_view key, std::string_view value, const Deadline& deadline);
  // Waits until the key is there.
  std::string get(std::string_view key, const Deadline& deadline);
  void erase(std::string_view key, const Deadline& deadline);

  proto::Dialect dialect() const { return dialect_; }
  // This host's address from which it reaches the agent.
  net::HostPort local_address() const { return local_; }

 private:
  // Empty, with the reason, if the server doesn't speak it.
  UniqueFd try_open(proto::Dialect dialect, const Deadline& deadline, std::string& reason) const;
  // Sends one request, and receives its reply if it has one. The views are valid until the next call.
  proto::Contents exchange(int fd, proto::Dialect dialect, const proto::Request& request,
                           const Deadline& deadline) const;
  // The same on a connection that is kept, unless something goes wrong: then a late reply might be taken for another's.
  proto::Contents exchange(const proto::Request& request, const Deadline& deadline);

  net::HostPort address_;
  proto::Dialect dialect_ = proto::Dialect::current;
  UniqueFd fd_;
  net::HostPort local_;
  mutable std::string input_;
};

}  // namespace lockstep::rendezvous
