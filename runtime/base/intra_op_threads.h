// How many threads one operation of this process may use.
//
// init_process_group sets it once it knows how many ranks share the cores; kernels read it. Any thread may call both.
#pragma once

namespace lockstep {

// Wanted threads, at least 1. Throws InvalidArgument for less.
void set_intra_op_threads(int threads);
// What was set; else OMP_NUM_THREADS; else allowed_cores().
int intra_op_threads();

}  // namespace lockstep
