// SPDX-License-Identifier: Apache-2.0
// The errors of lockstep: few, typed, and written for a stranger at three in the morning.
//
// Every message holds the operation, the value seen and the value wanted, the rank, host, address, bucket or step
// concerned, elapsed time against its limit if there is one, and the remedy. docs/ERRORS.md lists the errors that users
// meet. A library call never prints, never ignores a return code, and never exits the process, with two exceptions: the
// watchdog of a GPU that does not stop, and a rank whose launcher has died.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "lockstep/base/api.h"

namespace lockstep {

struct Cause;  // lockstep/job/cause.h; only a name here

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

// The user gave a wrong argument, variable or file. The call changed nothing.
class LOCKSTEP_API InvalidArgument : public Error {
 public:
  using Error::Error;
};

// A deadline passed. The message names the ranks or the thing that did not arrive.
class LOCKSTEP_API Timeout : public Error {
 public:
  using Error::Error;
};

// Another rank died, left or aborted. The group throws the same first cause from each later call.
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

// A system call failed for a reason that the caller can't have caused. The message holds the call, its object and the
// reason.
class LOCKSTEP_API SystemError : public Error {
 public:
  // The message is "OPERATION: REASON", followed by "; REMEDY" if there is one.
  SystemError(std::string_view operation, int error_number, std::string_view remedy = {});
  // The value of errno.
  int error_number() const { return error_number_; }

 private:
  int error_number_;
};

// The text of an errno value: "Connection refused (errno 111)".
LOCKSTEP_API std::string errno_text(int error_number);

}  // namespace lockstep
