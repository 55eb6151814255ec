// SPDX-License-Identifier: Apache-2.0
// mpirun, where this host has it.
#pragma once

#include <gtest/gtest.h>

#include "tests/support/process.h"

namespace lockstep::e2e {

// Open MPI starts more ranks than cores only with a variable (another in 4 than in 5), and nothing for root without
// two.
inline testing::Variables mpi_variables() {
  return {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
          {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
          {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
          {"PRTE_MCA_rmaps_default_mapping_policy", "slot:oversubscribe"}};
}

}  // namespace lockstep::e2e

#define LOCKSTEP_NEEDS_MPIRUN()                               \
  if (!lockstep::testing::has_program("mpirun"))              \
  GTEST_SKIP() << "mpirun is not installed: apt-get install " \
                  "openmpi-bin"
