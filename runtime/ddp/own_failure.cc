// SPDX-License-Identifier: Apache-2.0
#include "runtime/ddp/own_failure.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/base/printable.h"
#include "runtime/comm/group_internals.h"
#include "runtime/comm/roster_cause.h"

namespace lockstep {
namespace {

const rendezvous::Member& self(const ProcessGroup& group) {
  return group.roster()[static_cast<std::size_t>(group.rank())];
}

// Returns true if `exception` is a failure of the group, which every rank gets from the group.
bool is_of_the_group(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const PeerLost&) {
    return true;
  } catch (const Error& error) {
    return error.cause() != nullptr;
  } catch (...) {
    return false;
  }
}

int errno_of(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const SystemError& error) {
    return error.error_number();
  } catch (...) {
    return 0;
  }
}

}  // namespace

std::string message_of(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& error) {
    return std::string(without_backtrace(error.what()));
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

Cause failure_of_this_rank(const ProcessGroup& group, std::string_view operation, const std::exception_ptr& exception) {
  Cause cause = comm::cause_about(group.roster(), Cause::Kind::failed, group.rank(), group.rank(),
                                  fmt::format("{}{}{} failed: {}", operation, operation.empty() ? "" : ": ",
                                              self(group).describe(), message_of(exception)),
                                  group.internals().last_sequence());
  cause.error_number = errno_of(exception);
  return cause;
}

OwnFailure::OwnFailure(std::shared_ptr<ProcessGroup> group) : group_(std::move(group)) {}

void OwnFailure::keep(std::string_view where, const std::exception_ptr& exception) noexcept {
  if (!is_of_the_group(exception)) keep(where, message_of(exception));
}

void OwnFailure::keep(std::string_view where, std::string_view text) noexcept {
  text_ = fmt::format("failed in {}: {}", where, text);
  if (group_->size() == 1 || !owner_.is_here()) return;
  try {
    // Report the failure to the launcher now. If the program catches the exception and exits while other ranks wait,
    // the launcher names the reported failure as the cause.
    Cause cause =
        comm::cause_about(group_->roster(), Cause::Kind::failed, group_->rank(), group_->rank(),
                          fmt::format("{} {}", self(*group_).describe(), text_), group_->internals().last_sequence());
    cause.ends_group = false;
    group_->internals().report_failure(cause);
  } catch (const std::exception& error) {
    log_error(
        "DistributedDataParallel: this rank {}; this rank could not tell the launcher ({}), which may blame another "
        "rank: look at this rank first",
        text_, error.what());
  }
}

void OwnFailure::tell() noexcept {
  if (text_.empty() || group_->size() == 1 || !owner_.is_here()) return;
  try {
    group_->abort(fmt::format("{} {}", self(*group_).describe(), text_));
  } catch (const std::exception& error) {
    log_error(
        "DistributedDataParallel: this rank {}; this rank could not tell the other ranks ({}), which may wait until "
        "their timeouts: end these ranks now if they still run",
        text_, error.what());
  }
}

void OwnFailure::tell_if_unwinding(bool others_wait) noexcept {
  if (!unwind_guard_.is_unwinding()) return;
  if (text_.empty() && others_wait) {
    keep("the middle of a step", "an exception of the program: see that rank's output");
  }
  tell();
}

}  // namespace lockstep
