// SPDX-License-Identifier: Apache-2.0
// Defines the errors of lockstep, one type for each kind of failure.
//
// Every message holds the operation, the value seen and the value wanted, and the remedy. A message also names the
// rank, host, address, bucket or step concerned, and a timeout's message the elapsed time and the limit. docs/ERRORS.md
// lists the errors that users meet.
//
// A library call never prints, never ignores a return code, and never exits the process. Two exceptions exit the
// process: the watchdog of a GPU that does not stop, and a rank whose launcher has died.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "lockstep/base/api.h"

namespace lockstep {

struct Cause;  // lockstep/job/cause.h; only a name here

// Error is the base class of all errors of this library.
class LOCKSTEP_API Error : public std::runtime_error {
 public:
  // Makes an error whose what() is `message` as a terminal may show it (runtime/base/printable.h): UTF-8 without
  // control characters.
  explicit Error(std::string_view message);
  // Makes an error with the cause of a group's failure. make_error() of lockstep/job/cause.h takes the message from
  // the cause.
  Error(std::string_view message, std::shared_ptr<const Cause> cause);

  // Returns the cause of a group's failure, or null if this error has only its message. The cause lives as long as this
  // error and its copies.
  const Cause* cause() const noexcept { return cause_.get(); }

 private:
  std::shared_ptr<const Cause> cause_;
};

// Thrown if the user gave a wrong argument, variable or file. The call that threw it has changed nothing.
class LOCKSTEP_API InvalidArgument : public Error {
 public:
  using Error::Error;
};

// Thrown if a deadline has passed. The message names the ranks, or the object, that did not arrive.
class LOCKSTEP_API Timeout : public Error {
 public:
  using Error::Error;
};

// Thrown if another rank died, left or aborted. Each later call of the group throws a PeerLost with the first cause.
class LOCKSTEP_API PeerLost : public Error {
 public:
  using Error::Error;
};

// Thrown if ranks disagree in an operation, size, dtype, model or launcher.
class LOCKSTEP_API Mismatch : public Error {
 public:
  using Error::Error;
};

// Thrown if the store refused a request, or the connection to the store is gone.
class LOCKSTEP_API StoreError : public Error {
 public:
  using Error::Error;
};

// Thrown if a requested backend or device can't be used on this host. The message says the reason and the remedy.
class LOCKSTEP_API BackendUnavailable : public Error {
 public:
  using Error::Error;
};

// Thrown if a device refused or failed an operation: out of memory, a broken kernel, a lost GPU. The message holds the
// operation, the device and the words of the device's library.
class LOCKSTEP_API DeviceError : public Error {
 public:
  using Error::Error;
};

// Thrown if bytes from a file or a peer violate their format.
class LOCKSTEP_API CorruptData : public Error {
 public:
  using Error::Error;
};

// Thrown if a system call failed for a reason that the caller can't have caused. The message holds the system call, its
// object and the reason.
class LOCKSTEP_API SystemError : public Error {
 public:
  // Makes an error with the message "OPERATION: REASON", followed by "; REMEDY" if `remedy` is not empty.
  SystemError(std::string_view operation, int error_number, std::string_view remedy = {});
  // Returns the value of errno.
  int error_number() const { return error_number_; }

 private:
  int error_number_;
};

// Returns the text of an errno value: "Connection refused (errno 111)".
LOCKSTEP_API std::string errno_text(int error_number);

}  // namespace lockstep
