// SPDX-License-Identifier: Apache-2.0
// What liblockstep exports for our own libraries, plug-ins, programs and tests alone, and not for users: it has a
// symbol version of its own, LOCKSTEP_PRIVATE_x.y.z, and cmake/private_symbols.txt lists all of it. Use it in internal
// headers only; what users call has LOCKSTEP_API (lockstep/base/api.h).
#pragma once

#define LOCKSTEP_INTERNAL_API __attribute__((visibility("default")))
