// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/wire/wire.h"

namespace lockstep::wire {

void complete(Wire& wire, Transfer transfer) {
  while (!wire.done(transfer)) wire.wait(Deadline::never());
}

void exchange(Wire& wire, std::span<const ConstPiece> sends, std::span<const Piece> recvs) {
  std::vector<Transfer> transfers;
  for (const Piece& piece : recvs) transfers.push_back(wire.receive(piece, {}));
  for (const ConstPiece& piece : sends) transfers.push_back(wire.send(piece, {}));
  for (const Transfer transfer : transfers) complete(wire, transfer);
}

}  // namespace lockstep::wire
