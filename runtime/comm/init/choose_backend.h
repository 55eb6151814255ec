// SPDX-License-Identifier: Apache-2.0
// Which backend serves a group.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "runtime/comm/backend.h"

namespace lockstep {

struct BackendChoice {
  const Backend* backend = nullptr;
  std::string why;  // "asked for", "auto", "auto; backend 'shm' works within one host"
};

// Throws BackendUnavailable for the name of a backend that this build doesn't have, InvalidArgument for any other that
// is neither "auto" nor in `candidates`; "gloo" is PyTorch's name for "tcp". Call it before the ranks meet, so that a
// wrong name waits for nobody. `asked_by` begins the message: the call, or the variable that has the name.
void require_known_backend(std::string_view name, std::span<const Backend> candidates,
                           std::string_view asked_by = "init_process_group");

// "auto": the first that can serve, on every rank. Each rank decides by itself about the candidates before the first
// plug-in; about the others the ranks agree. Throws BackendUnavailable with each one's reason if none can, or if the
// named one can't; Timeout if a rank does not come to agree.
BackendChoice choose_backend(std::string_view name, std::span<const Backend> candidates, const GroupContext& context,
                             const Deadline& deadline);

// Leaves `name` in the context's store as the backend that this rank will use, without waiting for the others. Throws
// Mismatch if another rank has left another one: each of them would wait for ranks that never come.
void announce_backend(std::string_view name, const GroupContext& context);

}  // namespace lockstep
