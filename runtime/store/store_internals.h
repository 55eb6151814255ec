// SPDX-License-Identifier: Apache-2.0
// StoreInternals has calls of lockstep's own stores that lockstep makes and users do not. A program's own Store need
// not have these calls.
#pragma once

#include "lockstep/store/store.h"

namespace lockstep::store {

// Threads: any thread may make the internal calls.
class StoreInternals {
 public:
  // Works like Store::stop_waiting(), and keeps calls from waiting long for an answer of the store. Call give_up() when
  // the store itself is known to have stopped answering. Doesn't block.
  virtual void give_up() = 0;
  // Closes the idle connections if no call has used a connection since the last rest(). The next call connects again.
  virtual void rest() {}

 protected:
  ~StoreInternals() = default;
};

// Calls StoreInternals::give_up(), or stop_waiting() of a store without the internal calls.
inline void give_up(Store& store) {
  auto* const own = dynamic_cast<StoreInternals*>(&store);
  own != nullptr ? own->give_up() : store.stop_waiting();
}
inline void rest(Store& store) {
  if (auto* const own = dynamic_cast<StoreInternals*>(&store)) own->rest();
}

}  // namespace lockstep::store
