// SPDX-License-Identifier: Apache-2.0
// StoreInternals declares functions of lockstep's own stores that lockstep calls and programs don't call. A Store that
// a program implements need not have the functions of StoreInternals.
#pragma once

#include "lockstep/store/store.h"

namespace lockstep::store {

// Threads: any thread may call the functions of StoreInternals.
class StoreInternals {
 public:
  // Works like Store::stop_waiting(), and also makes calls wait only a short time for answers of the store's server.
  // Call give_up() when the store's server is known to have stopped answering. Doesn't block.
  virtual void give_up() = 0;
  // Closes the store's idle connections if no call has used a connection since the last rest(). The next call
  // connects again.
  virtual void rest() {}

 protected:
  ~StoreInternals() = default;
};

// Calls give_up() of a store that implements StoreInternals, and stop_waiting() of any other store.
inline void give_up(Store& store) {
  auto* const own = dynamic_cast<StoreInternals*>(&store);
  own != nullptr ? own->give_up() : store.stop_waiting();
}
inline void rest(Store& store) {
  if (auto* const own = dynamic_cast<StoreInternals*>(&store)) own->rest();
}

}  // namespace lockstep::store
