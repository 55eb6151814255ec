// SPDX-License-Identifier: Apache-2.0
// Defines the exceptions that lockstep throws, one type for each kind of failure.
//
// Every error message names the operation that failed, the value seen, the value wanted and the remedy. An error
// message also names the rank, host, address, bucket or step concerned; the message of a Timeout has the elapsed time
// and the limit. docs/ERRORS.md lists the errors that users meet.
//
// A library call never prints, never ignores a return code, and never exits the process. Only two events make lockstep
// exit the process: a GPU that does not stop within the watchdog's time limit, and the death of the rank's launcher.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "lockstep/base/api.h"

namespace lockstep {

struct Cause;  // lockstep/job/cause.h; only a name here

// Error is the base class of all exceptions that lockstep throws.
class LOCKSTEP_API Error : public std::runtime_error {
 public:
  // Makes an error whose what() is `message`, converted to printable UTF-8 without control
  // characters (runtime/base/printable.h).
  explicit Error(std::string_view message);
  // Makes an error with the cause of a group's failure. make_error() in lockstep/job/cause.h makes an error whose
  // message is the cause's text.
  Error(std::string_view message, std::shared_ptr<const Cause> cause);

  // Returns the cause of a group's failure, or null if this error has a message and no cause. The cause lives as long
  // as this Error or a copy of this Error lives.
  const Cause* cause() const noexcept { return cause_.get(); }

 private:
  std::shared_ptr<const Cause> cause_;
};

// Thrown if the user gave a wrong argument, environment variable or file. A call that throws InvalidArgument has
// changed nothing.
class LOCKSTEP_API InvalidArgument : public Error {
 public:
  using Error::Error;
};

// Thrown if a deadline has passed. The message of a Timeout names the ranks, or the object, that the call waited for
// in vain.
class LOCKSTEP_API Timeout : public Error {
 public:
  using Error::Error;
};

// Thrown if another rank of the group died, left or aborted. Each later call of the group throws a PeerLost with the
// same cause.
class LOCKSTEP_API PeerLost : public Error {
 public:
  using Error::Error;
};

// Thrown if ranks call different operations, pass different sizes or dtypes, or have different models or launchers.
class LOCKSTEP_API Mismatch : public Error {
 public:
  using Error::Error;
};

// Thrown if the store refused a request, or the connection to the store is gone.
class LOCKSTEP_API StoreError : public Error {
 public:
  using Error::Error;
};

// Thrown if a requested backend or device can't be used on this host. The message of a BackendUnavailable says why the
// backend or device can't be used, and what the user can do.
class LOCKSTEP_API BackendUnavailable : public Error {
 public:
  using Error::Error;
};

// Thrown if an operation failed on a device: out of memory, a broken kernel, a lost GPU. The message of a DeviceError
// names the operation and the device, and quotes the device library's error text.
class LOCKSTEP_API DeviceError : public Error {
 public:
  using Error::Error;
};

// Thrown if bytes that were read from a file or received from another rank violate their format.
class LOCKSTEP_API CorruptData : public Error {
 public:
  using Error::Error;
};

// Thrown if a system call failed for a reason that the caller can't have caused. The message of a SystemError names the
// system call, the call's object (such as the file) and the reason.
class LOCKSTEP_API SystemError : public Error {
 public:
  // Makes an error with the message "OPERATION: REASON; REMEDY", or "OPERATION: REASON" if `remedy` is empty.
  SystemError(std::string_view operation, int error_number, std::string_view remedy = {});
  // Returns the value of errno.
  int error_number() const { return error_number_; }

 private:
  int error_number_;
};

// Returns the text of an errno value: "Connection refused (errno 111)".
LOCKSTEP_API std::string errno_text(int error_number);

}  // namespace lockstep
