// SPDX-License-Identifier: Apache-2.0
// Errors of lockstep: few, typed, and written for a stranger at three in the morning.
//
// Every message holds the operation, the value seen and the value wanted, the rank, host, address, bucket or step
// concerned, elapsed time against its limit if there is one, and the remedy. docs/ERRORS.md lists the errors that users
// meet. A library call never exits the process (but for the watchdog of a GPU that does not let go, and a rank whose
// launcher has died), never prints, and never ignores a return code.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "lockstep/base/api.h"

namespace lockstep {

struct Cause;  // lockstep/job/cause.h; here it is only a name

// Base of all errors of this library.
class LOCKSTEP_API Error : public std::runtime_error {
 public:
  // what() is `message` as a terminal may show it (runtime/base/printable.h): UTF-8 without control characters.
  explicit Error(std::string_view message);
  // An error with the cause of a group's failure. make_error() of lockstep/job/cause.h takes the message from it.
  Error(std::string_view message, std::shared_ptr<const Cause> cause);

  // The cause of a group's failure, as data; null for an error that has only its message. Lives as long as this error
  // and its copies.
  const Cause* cause() const noexcept { return cause_.get(); }

 private:
  std::shared_ptr<const Cause> cause_;
};

// An argument, a variable or a file given by the user is wrong. The call changed nothing.
class LOCKSTEP_API InvalidArgument : public Error {
 public:
  using Error::Error;
};

// A deadline passed. The message names the ranks or the thing that did not arrive.
class LOCKSTEP_API Timeout : public Error {
 public:
  using Error::Error;
};

// Another rank died, left or aborted. Sticky: the group fails each later call with the same first cause.
class LOCKSTEP_API PeerLost : public Error {
 public:
  using Error::Error;
};

// Ranks disagree: another operation, size, dtype, model or launcher.
class LOCKSTEP_API Mismatch : public Error {
 public:
  using Error::Error;
};

// The store refused a request, or the connection to it is gone.
class LOCKSTEP_API StoreError : public Error {
 public:
  using Error::Error;
};

// A backend or device that was asked for can't be used here. The message says the reason and the remedy.
class LOCKSTEP_API BackendUnavailable : public Error {
 public:
  using Error::Error;
};

// A device refused or failed an operation: out of memory, a broken kernel, a lost GPU. The message holds the operation,
// the device and its library's own words.
class LOCKSTEP_API DeviceError : public Error {
 public:
  using Error::Error;
};

// Bytes from a file or a peer are not what their format says.
class LOCKSTEP_API CorruptData : public Error {
 public:
  using Error::Error;
};

// A system call failed in a way the caller can't have caused: the message holds the call, its object and the reason.
class LOCKSTEP_API SystemError : public Error {
 public:
  // "OPERATION: REASON", and behind that "; REMEDY" if there is one.
  SystemError(std::string_view operation, int error_number, std::string_view remedy = {});
  // The number that errno had.
  int error_number() const { return error_number_; }

 private:
  int error_number_;
};

// The text of an errno value, as "Connection refused (errno 111)".
LOCKSTEP_API std::string errno_text(int error_number);

}  // namespace lockstep
