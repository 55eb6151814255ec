// SPDX-License-Identifier: Apache-2.0
// What lockstep's own stores can do for lockstep beside what users call; a program's own Store need not.
#pragma once

#include "lockstep/store/store.h"

namespace lockstep::store {

// Threads: any.
class StoreInternals {
 public:
  // As Store::stop_waiting(), and no call waits long for an answer of the store either. Call it when the store itself
  // is known to have stopped answering. Doesn't block.
  virtual void give_up() = 0;
  // Lets go of connections that no call has used since the last rest(); the next call opens one.
  virtual void rest() {}

 protected:
  ~StoreInternals() = default;
};

// The same of any store.
inline void give_up(Store& store) {
  auto* const own = dynamic_cast<StoreInternals*>(&store);
  own != nullptr ? own->give_up() : store.stop_waiting();
}
inline void rest(Store& store) {
  if (auto* const own = dynamic_cast<StoreInternals*>(&store)) own->rest();
}

}  // namespace lockstep::store
