// SPDX-License-Identifier: Apache-2.0
// What lockstep's all-reduce is measured against. One translation unit per build fills this in.
#pragma once

#include <cstddef>
#include <string>

namespace lockstep::bench {

// Before anything else in main. The peer may read and keep argc and argv.
void peer_start(int* argc, char*** argv);
void peer_end();
// "Open MPI v4.1.4 MPI_Allreduce in place"; empty if there is no peer in this build.
std::string peer_name();
// In place, float sum over all ranks; blocks until done.
void peer_all_reduce(float* data, std::size_t count);
void peer_barrier();

}  // namespace lockstep::bench
