// SPDX-License-Identifier: Apache-2.0
// An all-reduce over several hosts with several ranks each: within a host through its shared memory, between hosts over
// the wire, of whose bytes each carries what one rank per host would.
//
// Lane l is the ranks that are l-th on their hosts. Of every piece of the data a lane has a share: each of its ranks
// reduces that share of all memory on its host, exchanges the sums with its lane, and writes the result into all
// memory on its host. What is added up is the tree over a host's ranks, then the tree over the hosts: where every host
// has the same power of two of ranks, in the order of the hosts, that is the tree of comm/reduction.h over all ranks,
// and the bits are those of one host.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "runtime/comm/transfer.h"
#include "runtime/comm/wire/arrival_table.h"
#include "runtime/comm/wire/host_memory.h"
#include "runtime/comm/wire/movement.h"
#include "runtime/comm/wire/wire.h"

namespace lockstep::wire {

// False for what goes the way of those who share no memory: all but all-reduces, and those where a sum of sums is
// another than the sum, of 16-bit floats, which are rounded once, and of integers that are divided.
bool goes_by_hosts(const comm::Task& task);

// A place as it travels with the announcement of an all-reduce, and the places of all ranks, by rank. Nothing if one of
// the buffers is in no arena.
std::vector<std::byte> written(const comm::Place& place);
std::optional<std::vector<comm::Place>> places_in(const Arrivals& arrivals);

// Moves all of it, in the arenas or, without `places`, through the windows of each host. `places`: of all ranks'
// buffers, by rank. Called on every rank, on the communication thread. Throws Broken.
void all_reduce_by_hosts(const comm::Task& task, const std::optional<std::vector<comm::Place>>& places,
                         const Hosts& hosts, HostMemory& memory, Wire& wire, ScratchBuffer& scratch);

}  // namespace lockstep::wire
