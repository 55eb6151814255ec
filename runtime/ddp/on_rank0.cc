// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ddp/on_rank0.h"

#include <fmt/format.h>

#include <exception>

#include "lockstep/base/error.h"
#include "lockstep/job/cause.h"
#include "runtime/base/logging.h"
#include "runtime/comm/collective_call.h"
#include "runtime/comm/group_internals.h"
#include "runtime/ddp/own_failure.h"

namespace lockstep {
namespace {

constexpr char kResult = '+';
constexpr char kFailure = '-';

void tell(ProcessGroup& group, const Cause& cause) {
  if (group.size() == 1) return;
  // Report the failure to the launcher before the other ranks get the failure, because the other ranks may exit first.
  group.internals().report_failure(cause);
  try {
    all_gather_text(group, kFailure + encode(cause));
  } catch (const Error& error) {  // the caller throws the rank's own failure instead of `error`
    log_warn(
        "this rank failed ({}) and could not tell the other ranks: {}; the other ranks may wait until their timeouts; "
        "end them now if they still run",
        cause.text, error.what());
    return;
  }
  barrier_before_throw(group);
}

[[noreturn]] void throw_told(std::string_view operation, ProcessGroup& group, const std::string& told) {
  barrier_before_throw(group);
  const auto cause = decode_cause(std::string_view(told).substr(1));
  if (!cause) {
    throw CorruptData(
        fmt::format("{}: rank 0 failed, and this rank can't read the {} bytes in which rank 0 says why; run the same "
                    "build of lockstep on all ranks",
                    operation, told.size()));
  }
  throw_error(*cause);
}

}  // namespace

std::string text_on_rank0(std::string_view operation, const std::function<std::string()>& action, ProcessGroup& group) {
  std::string outcome;
  if (group.rank() == 0) {
    try {
      outcome = kResult + action();
    } catch (...) {
      const std::exception_ptr failure = std::current_exception();
      Cause cause = failure_of_this_rank(group, operation, failure);
      cause.ends_group = false;
      tell(group, cause);
      std::rethrow_exception(failure);
    }
  }
  std::string told = comm::within_call(operation, [&] { return all_gather_text(group, outcome).front(); });
  if (told.front() != kResult) throw_told(operation, group, told);
  return told.substr(1);
}

}  // namespace lockstep
