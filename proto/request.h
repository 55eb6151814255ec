// SPDX-License-Identifier: Apache-2.0
// Requests, from client to server.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "proto/fields.h"
#include "proto/protocol.h"

namespace lockstep::proto {

// One request. `keys`, `values` and `number` hold what the operation's fields ask for, in order: COMPARE_SET has the
// expected and the desired value, ADD's number is its delta, VALIDATE's the magic, PING's the nonce, WAIT_GET's the
// timeout.
struct Request {
  Op op = Op::validate;
  Contents contents;
};

// Appends the request's bytes to `out`. The dialect must have the operation; the current one has what PyTorch has, and
// the bytes of these are the same in lockstep's.
void write_request(std::string& out, const Request& request, Dialect dialect);
// The same in the dialect in which the code is the Op's own: the current one, or lockstep's for its own operations.
void write_request(std::string& out, const Request& request);

// Reads requests off a stream of bytes. Never throws on what it reads.
class RequestReader {
 public:
  explicit RequestReader(const Limits& limits = {}, Dialect dialect = Dialect::current)
      : limits_(limits), dialect_(dialect) {}

  // Reads one request. `input` begins with its first byte; after need_more call again with the same bytes and more
  // behind them. After ok: request(), valid as long as the bytes of `input`, and size(); drop that many bytes and go
  // on.
  Status read(std::string_view input);

  const Request& request() const { return request_; }
  std::size_t size() const { return fields_.end(); }
  // After malformed: "SET: bytes in a key: 1099511627776, the limit is 8192".
  std::string reason() const;

 private:
  Limits limits_;
  Dialect dialect_;
  Request request_;
  FieldReader fields_;
  bool started_ = false;
  int unknown_code_ = -1;
};

}  // namespace lockstep::proto
