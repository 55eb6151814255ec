// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/backend.h"

namespace lockstep {

membership::ScopeAddress scope_of(const GroupContext& context, const std::string& name) {
  membership::ScopeAddress scope{context.scopes, context.scope + name};
  if (context.roster.front().group.empty()) return scope;
  for (const rendezvous::Member& member : context.roster) scope.ranks.push_back(member.rank);
  return scope;
}

}  // namespace lockstep
