// Puts the place in front of a failure of the group: the first cause says who and why, only the caller knows where.
#pragma once

#include "runtime/base/error.h"

namespace lockstep {

// Returns call(). A PeerLost, Timeout or Mismatch from it keeps its type; its message becomes "<place()>: <cause>".
template <typename Place, typename Call>
auto at_place(Place place, Call call) {
  const auto placed = [&](const Error& error) { return place() + ": " + error.what(); };
  try {
    return call();
  } catch (const PeerLost& error) {
    throw PeerLost(placed(error));
  } catch (const Timeout& error) {
    throw Timeout(placed(error));
  } catch (const Mismatch& error) {
    throw Mismatch(placed(error));
  }
}

}  // namespace lockstep
