// SPDX-License-Identifier: Apache-2.0
// The functions of the test's plug-in. Each kind of error has an index, the same on both sides.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <typeinfo>

#include "lockstep/base/error.h"
#include "lockstep/ddp/not_finite.h"
#include "lockstep/job/cause.h"
#include "lockstep/store/store.h"

namespace lockstep::testing {

// All of lockstep's errors that carry a text or a cause.
using Errors = std::tuple<Error, InvalidArgument, Timeout, PeerLost, Mismatch, StoreError, store::StoreLost,
                          BackendUnavailable, DeviceError, NotFiniteGradient, CorruptData>;

struct Thrower {
  // Throws Errors[kind] of `text`; if `cause` is not null, with that.
  void (*raise)(std::size_t kind, const char* text, const Cause* cause);
  // Calls `call` and returns what its `catch (const PeerLost&)` has: the cause's text, host and step; "" if none came
  // there.
  std::string (*caught)(void (*call)());
  // The plug-in's typeid(Errors[kind]).
  const std::type_info* (*type)(std::size_t kind);
};

}  // namespace lockstep::testing
