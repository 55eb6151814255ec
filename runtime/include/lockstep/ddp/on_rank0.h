// SPDX-License-Identifier: Apache-2.0
// on_rank0 runs an action, such as reading or writing a file, on rank 0, and gives the action's result to all ranks.
//
//   lockstep::on_rank0([&] { unpack(file, folder); }, *group);                      // the other ranks wait
//   const int classes = lockstep::on_rank0([&] { return count_classes(file); }, *group);
//
// Collective: every rank calls on_rank0, and the other ranks wait for rank 0's action, at most for the group's timeout
// (InitOptions::timeout). After the timeout the group has failed.
//
// Failure: if the action throws, rank 0 rethrows the action's exception, even if the group fails meanwhile. If rank 0's
// action throws, every other rank throws PeerLost, whose cause() holds the text and errno of rank 0's exception
// ("save_weights: rank 0 (host node7, pid 4711) failed: ..."). No rank throws before all ranks have the text of the
// action's exception, so the group stays usable after a failed action. If the group fails, on_rank0 throws the group's
// error; if a rank did not call on_rank0, the error's message names the operation.
#pragma once

#include <concepts>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/values.h"

namespace lockstep {

// Runs `action`, which returns text, on rank 0, and returns this text on every rank. `operation` is the action's name
// in messages.
LOCKSTEP_API std::string text_on_rank0(std::string_view operation, const std::function<std::string()>& action,
                                       ProcessGroup& group);

// Runs `action` on rank 0 and returns the action's result on every rank: nothing, text, or a plain value
// (comm/values.h). `operation` is the action's name in messages.
template <std::invocable Action>
auto on_rank0(std::string_view operation, Action&& action, ProcessGroup& group) {
  using Result = std::invoke_result_t<Action>;
  if constexpr (std::is_void_v<Result>) {
    text_on_rank0(
        operation,
        [&] {
          std::invoke(std::forward<Action>(action));
          return std::string();
        },
        group);
  } else if constexpr (std::convertible_to<Result, std::string>) {
    return text_on_rank0(
        operation, [&]() -> std::string { return std::invoke(std::forward<Action>(action)); }, group);
  } else {
    static_assert(PlainValue<Result>, "rank 0's result travels as its bytes: return a number, text or a plain struct");
    const std::string bytes = text_on_rank0(
        operation,
        [&] {
          const Result result = std::invoke(std::forward<Action>(action));
          return std::string(reinterpret_cast<const char*>(&result), sizeof(result));
        },
        group);
    Result result{};
    std::memcpy(&result, bytes.data(), sizeof(result));
    return result;
  }
}
template <std::invocable Action>
auto on_rank0(Action&& action, ProcessGroup& group) {
  return on_rank0("on_rank0", std::forward<Action>(action), group);
}

}  // namespace lockstep
