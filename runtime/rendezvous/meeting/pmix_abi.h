// SPDX-License-Identifier: Apache-2.0
// The few types and functions of PMIx that pmix.cc uses, as libpmix.so.2 has them.
//
// Declared here and not taken from pmix.h, so that there is one way to build this room, with or without libpmix-dev.
// Source: PMIx Standard 4.1 (https://pmix.github.io/standard), chapters 3.2 and 5; layouts as in OpenPMIx 3 to 5, which
// keep them within soname 2.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::rendezvous::pmix {

inline constexpr int kSuccess = 0;                // PMIX_SUCCESS
inline constexpr int kNotFound = -46;             // PMIX_ERR_NOT_FOUND
inline constexpr int kTimedOut = -24;             // PMIX_ERR_TIMEOUT: a server that has its own idea of how long
inline constexpr std::uint16_t kString = 3;       // PMIX_STRING
inline constexpr std::uint16_t kUint16 = 13;      // PMIX_UINT16
inline constexpr std::uint16_t kUint32 = 14;      // PMIX_UINT32
inline constexpr std::uint8_t kGlobal = 3;        // PMIX_GLOBAL: for ranks of this host and of others
inline constexpr std::size_t kMaxKeyBytes = 511;  // PMIX_MAX_KEYLEN
// PMIX_RANK_WILDCARD: for what the server knows of the job as a whole.
inline constexpr std::uint32_t kWholeJob = UINT32_MAX - 1;
inline constexpr const char* kJobSize = "pmix.job.size";      // PMIX_JOB_SIZE, of the whole job
inline constexpr const char* kLocalSize = "pmix.local.size";  // PMIX_LOCAL_SIZE, of the whole job
inline constexpr const char* kLocalRank = "pmix.lrank";       // PMIX_LOCAL_RANK, of a rank

// pmix_proc_t
struct Process {
  char name_space[256];
  std::uint32_t rank;
};
static_assert(sizeof(Process) == 260);

// pmix_value_t: a union of 24 bytes (its largest member, pmix_envar_t, is two pointers and a char), of which only
// these are used here.
struct Value {
  std::uint16_t type;
  union {
    char* string;
    std::uint16_t uint16;
    std::uint32_t uint32;
    std::uint64_t space[3];
  } data;
};
static_assert(sizeof(Value) == 32 && offsetof(Value, data) == 8);

using Callback = void (*)(int status, Value* value, void* context);

using Init = int (*)(Process* self, void* infos, std::size_t count);
using Finalize = int (*)(const void* infos, std::size_t count);
using Put = int (*)(std::uint8_t scope, const char* key, Value* value);
using Commit = int (*)();
using GetNb = int (*)(const Process* process, const char* key, const void* infos, std::size_t count, Callback callback,
                      void* context);
using ErrorString = const char* (*)(int status);

}  // namespace lockstep::rendezvous::pmix
