// SPDX-License-Identifier: Apache-2.0
// Describes the result of an init_process_group called here and now: for `lockstep doctor`.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "lockstep/base/environment.h"
#include "runtime/job/launcher_guard.h"
#include "runtime/net/interfaces.h"

namespace lockstep::rendezvous {

struct Fact {
  std::string name;  // "launcher", "rank", "ignored", "meeting", "secret", "interface", "interfaces"
  std::string text;
  bool problem = false;  // init_process_group would throw this text
};

// Opens no socket and asks no launcher; reads the files that variables name. Nothing of the secret but whether there is
// one. Never throws for what variables say: that becomes a fact.
std::vector<Fact> describe_rendezvous(const Environment& environment, std::span<const Ancestor> ancestors,
                                      std::span<const net::Interface> interfaces);

}  // namespace lockstep::rendezvous
