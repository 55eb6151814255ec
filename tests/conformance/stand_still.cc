// SPDX-License-Identifier: Apache-2.0
// MPI_Init of a program whose rank 1 is stopped when it comes to it.
#include <dlfcn.h>

#include <csignal>
#include <cstdlib>
#include <string_view>

// Found before the library's, so exported.
extern "C" __attribute__((visibility("default"))) int MPI_Init_thread(int* argc, char*** argv, int required,
                                                                      int* provided);
extern "C" int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (rank != nullptr && std::string_view(rank) == "1") std::raise(SIGSTOP);
  void* const library = dlopen("libmpi.so.40", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) std::abort();
  const auto init = reinterpret_cast<decltype(&MPI_Init_thread)>(dlsym(library, "PMPI_Init_thread"));
  if (init == nullptr) std::abort();
  return init(argc, argv, required, provided);
}
