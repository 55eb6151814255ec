// SPDX-License-Identifier: Apache-2.0
// Calls of lockstep's own stores for lockstep, besides those for users; a program's own Store need not have them.
#pragma once

#include "lockstep/store/store.h"

namespace lockstep::store {

// The internal calls. Threads: any.
class StoreInternals {
 public:
  // As Store::stop_waiting(), and no call waits long for an answer of the store either. Call it when the store itself
  // is known to have stopped answering. Doesn't block.
  virtual void give_up() = 0;
  // Closes connections that no call has used since the last rest(); the next call opens one.
  virtual void rest() {}

 protected:
  ~StoreInternals() = default;
};

// StoreInternals::give_up() for any store.
inline void give_up(Store& store) {
  auto* const own = dynamic_cast<StoreInternals*>(&store);
  own != nullptr ? own->give_up() : store.stop_waiting();
}
inline void rest(Store& store) {
  if (auto* const own = dynamic_cast<StoreInternals*>(&store)) own->rest();
}

}  // namespace lockstep::store
