// SPDX-License-Identifier: Apache-2.0
#include "proto/request.h"

#include <cassert>

namespace lockstep::proto {

void write_request(std::string& out, const Request& request) {
  const bool own = static_cast<std::uint8_t>(request.op) >= static_cast<std::uint8_t>(Op::hello);
  write_request(out, request, own ? Dialect::lockstep : Dialect::current);
}

void write_request(std::string& out, const Request& request, Dialect dialect) {
  const auto code = code_of(request.op, dialect);
  assert(code);
  out.push_back(static_cast<char>(*code));
  write_fields(out, shape_of(request.op).request, request.contents);
}

Status RequestReader::read(std::string_view input) {
  if (!started_) {
    if (input.empty()) return Status::need_more;
    const auto code = static_cast<std::uint8_t>(input.front());
    const auto op = op_from_code(code, dialect_);
    if (!op) {
      unknown_code_ = code;
      return Status::malformed;
    }
    request_.op = *op;
    fields_.start(shape_of(*op).request, 1);
    started_ = true;
  }
  const Status status = fields_.read(input, limits_);
  if (status == Status::ok) {
    fields_.contents(input, request_.contents);
    started_ = false;
  }
  return status;
}

std::string RequestReader::reason() const {
  if (unknown_code_ >= 0) {
    return "unknown operation " + std::to_string(unknown_code_) + " in the protocol of " +
           std::string(name_of(dialect_));
  }
  return std::string(shape_of(request_.op).name) + ": " + fields_.reason();
}

}  // namespace lockstep::proto
