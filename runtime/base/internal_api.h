// SPDX-License-Identifier: Apache-2.0
// Exports of liblockstep for our own libraries, plug-ins, programs and tests alone, not for users: they have a symbol
// version of their own, LOCKSTEP_PRIVATE_x.y.z, and cmake/private_symbols.txt lists all of it. Use it in internal
// headers only; functions that users call have LOCKSTEP_API (lockstep/base/api.h).
#pragma once

#define LOCKSTEP_INTERNAL_API __attribute__((visibility("default")))
