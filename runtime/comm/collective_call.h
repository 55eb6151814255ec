// SPDX-License-Identifier: Apache-2.0
// A call of the library that all ranks have to make, and what is said when one of them did not: the name of the call,
// which the program's author typed, before that of the collective within it.
#pragma once

#include <fmt/format.h>

#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/job/cause.h"

namespace lockstep::comm {

// Returns the result of `collective`. An error of ranks that did not come to one call, such as rank 0's of `if (rank ==
// 0) save_weights(...)`, is thrown again with `call` in front and the remedy behind.
template <typename Collective>
auto within_call(std::string_view call, const Collective& collective) {
  try {
    return collective();
  } catch (const Error& error) {
    using Kind = Cause::Kind;
    const Cause* const cause = error.cause();
    if (cause == nullptr) throw;
    if (cause->kind != Kind::left && cause->kind != Kind::timeout && cause->kind != Kind::mismatch) throw;
    throw_again(error, fmt::format("{}: {}; {} is collective: call it on every rank", call, error.what(), call));
  }
}

}  // namespace lockstep::comm
