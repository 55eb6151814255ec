// SPDX-License-Identifier: Apache-2.0
// What lockstep's all-reduce is measured against. One translation unit per build fills this in.
#pragma once

#include <cstddef>
#include <string>

namespace lockstep::bench {

// Before anything else in main. The peer may read and keep argc and argv.
void peer_start(int* argc, char*** argv);
void peer_end();
// "Open MPI v4.1.4"; empty if there is no peer in this build.
std::string peer_name();
// In place, float sum over all ranks; blocks until done.
void peer_all_reduce(float* data, std::size_t count);
// `count` floats of rank 0 to all; of each rank to all; each rank's part of the sum over all ranks.
void peer_broadcast(float* data, std::size_t count);
void peer_all_gather(const float* input, float* output, std::size_t count);
void peer_reduce_scatter(const float* input, float* output, std::size_t count);
void peer_barrier();

}  // namespace lockstep::bench
