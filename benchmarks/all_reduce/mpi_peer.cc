// SPDX-License-Identifier: Apache-2.0
#define OMPI_SKIP_MPICXX 1  // the C bindings alone: the C++ ones want a library of their own
#include <mpi.h>

#include <array>
#include <stdexcept>

#include "benchmarks/all_reduce/peer.h"

namespace lockstep::bench {
namespace {

void check(int code, const char* call) {
  if (code != MPI_SUCCESS) throw std::runtime_error(std::string(call) + " failed");
}

}  // namespace

void peer_start(int* argc, char*** argv) { check(MPI_Init(argc, argv), "MPI_Init"); }
void peer_end() { check(MPI_Finalize(), "MPI_Finalize"); }

std::string peer_name() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> version{};
  int length = 0;
  check(MPI_Get_library_version(version.data(), &length), "MPI_Get_library_version");
  const std::string text(version.data(), static_cast<std::size_t>(length));
  return text.substr(0, text.find(','));
}

void peer_all_reduce(float* data, std::size_t count) {
  check(MPI_Allreduce(MPI_IN_PLACE, data, static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD),
        "MPI_Allreduce");
}
void peer_broadcast(float* data, std::size_t count) {
  check(MPI_Bcast(data, static_cast<int>(count), MPI_FLOAT, 0, MPI_COMM_WORLD), "MPI_Bcast");
}
void peer_all_gather(const float* input, float* output, std::size_t count) {
  const int each = static_cast<int>(count);
  check(MPI_Allgather(input, each, MPI_FLOAT, output, each, MPI_FLOAT, MPI_COMM_WORLD), "MPI_Allgather");
}
void peer_reduce_scatter(const float* input, float* output, std::size_t count) {
  check(MPI_Reduce_scatter_block(input, output, static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD),
        "MPI_Reduce_scatter_block");
}
void peer_barrier() { check(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier"); }

}  // namespace lockstep::bench
