// SPDX-License-Identifier: Apache-2.0
// on_rank0 runs an action on rank 0 for all ranks, such as reading or writing a file.
//
//   lockstep::on_rank0(*group, [&] { unpack(file, folder); });                      // the other ranks wait
//   const int classes = lockstep::on_rank0(*group, [&] { return count_classes(file); });
//
// Collective: the other ranks wait for the action, at most the group's timeout (InitOptions::timeout); after that the
// group has failed.
//
// Failure: an exception of the action is thrown on rank 0, even if the group fails meanwhile. Every other rank throws
// PeerLost, a consequence, whose cause() holds rank 0's text and errno ("save_weights: rank 0 (host node7, pid 4711)
// failed: ..."). No rank throws before all have the text, and the group stays usable. Otherwise on_rank0 throws the
// group's errors, which name the operation if a rank did not make this call.
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

// Runs `action` on rank 0 and returns its result on every rank. `operation` is its name in messages.
LOCKSTEP_API std::string on_rank0(std::string_view operation, ProcessGroup& group,
                                  const std::function<std::string()>& action);

// Runs `action` on rank 0 and returns its result on every rank: nothing, text, or a plain value (comm/values.h).
template <std::invocable Action>
auto on_rank0(ProcessGroup& group, Action&& action) {
  using Result = std::invoke_result_t<Action>;
  constexpr std::string_view kOperation = "on_rank0";
  if constexpr (std::is_void_v<Result>) {
    on_rank0(kOperation, group, [&] {
      std::invoke(std::forward<Action>(action));
      return std::string();
    });
  } else if constexpr (std::convertible_to<Result, std::string>) {
    return on_rank0(kOperation, group, [&]() -> std::string { return std::invoke(std::forward<Action>(action)); });
  } else {
    static_assert(PlainValue<Result>, "rank 0's result travels as its bytes: return a number, text or a plain struct");
    const std::string bytes = on_rank0(kOperation, group, [&] {
      const Result result = std::invoke(std::forward<Action>(action));
      return std::string(reinterpret_cast<const char*>(&result), sizeof(result));
    });
    Result result{};
    std::memcpy(&result, bytes.data(), sizeof(result));
    return result;
  }
}

}  // namespace lockstep
